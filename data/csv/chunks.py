"""Contents of files piece by piece, decompressed where they are compressed by gzip."""

from __future__ import annotations

import contextlib
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from slicepilot.data.faults import DatasetError
from slicepilot.data.files import what_else

GZIP = b"\x1f\x8b"
CHUNK_BYTES = 1 << 20
UTF16 = "is UTF-16; expected UTF-8"
UTF16_SAMPLE, UTF16_SHARE = 512, 0.4  # bytes that are looked at, and share of a character's halves that are zero

OnProgress = Callable[[float], None]
"""Called with the share of a file that has been read, 0..1."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[io.BufferedReader, io.BufferedIOBase]]:
    """A file, and its contents, decompressed if need be; raises DatasetError if it cannot be opened."""
    if problem := what_else(path):
        raise DatasetError.at(path, f"{problem}; expected a regular file")
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DatasetError.at(path, f"{error.strerror}; expected a file, compressed by gzip or not") from None
    with raw:
        if raw.peek(len(GZIP))[: len(GZIP)] != GZIP:
            yield raw, raw
            return
        with gzip.GzipFile(fileobj=raw) as stream:
            yield raw, stream


def read_chunks(path: Path, on_progress: OnProgress | None = None) -> Iterator[bytes]:
    """The contents of a file, at most `CHUNK_BYTES` at a time.

    Raises:
        DatasetError: it cannot be read, or its compressed data are broken (after what came before has been handed on).
    """
    with opened(path) as (raw, stream):
        size = max(path.stat().st_size, 1)
        try:
            while chunk := stream.read(CHUNK_BYTES):
                if on_progress is not None:
                    on_progress(min(raw.tell() / size, 1.0))
                yield chunk
        except EOFError:
            raise DatasetError.at(path, "the compressed data end early; expected a whole file") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise DatasetError.at(path, f"the compressed data are damaged ({error}); expected a whole file") from None
        except OSError as error:
            raise DatasetError.at(path, f"{error.strerror or error}; expected a file that can be read") from None


def read_start(path: Path, length: int = 1 << 14) -> bytes:
    """The first bytes of a file; fewer, or none, where it ends or breaks off before; raises DatasetError as above."""
    return next(read_chunks(path), b"")[:length]


def utf16_of(start: bytes) -> str | None:
    """Python's name of the UTF-16 that a file begins in, with a byte order mark or without; None for anything else."""
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    sample = start[: min(len(start), UTF16_SAMPLE) // 2 * 2]
    first, second = sample[::2], sample[1::2]
    for encoding, zeros, others in (("utf-16-le", second, first), ("utf-16-be", first, second)):
        if zeros.count(0) > UTF16_SHARE * len(zeros) and not others.count(0):
            text = sample.decode(encoding, "replace")
            return encoding if "".join(text.split()).isprintable() else None
    return None
