"""Text in other encodings than UTF-8."""

from __future__ import annotations

UTF16 = "is UTF-16; accepted: UTF-8"

_SAMPLE = 512
_SHARE = 0.4  # of a character's halves that are zero in western text


def utf16_of(start: bytes | bytearray) -> str | None:
    """Python's name of the UTF-16 that a file begins in, with a byte order mark or without; None for anything else."""
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    sample = bytes(start[: min(len(start), _SAMPLE) // 2 * 2])
    first, second = sample[::2], sample[1::2]
    for encoding, zeros, others in (("utf-16-le", second, first), ("utf-16-be", first, second)):
        if zeros.count(0) > _SHARE * len(zeros) and not others.count(0):
            text = sample.decode(encoding, "replace")
            return encoding if "".join(text.split()).isprintable() else None
    return None
