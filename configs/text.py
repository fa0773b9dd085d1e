"""Text from other programs and users, such as names of processes and interfaces, made safe to print."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence

_CONTROLS = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str) -> str:
    """One printable line: a question mark for each line end, terminal code, or half of a surrogate pair."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def has_controls(text: str) -> bool:
    """Whether a text has what terminals obey or hide: control and format characters (terminal codes, directions of
    writing), line and paragraph ends (Unicode's general categories Cc, Cf, Cs, Zl, Zp)."""
    return not text.isprintable() and any(unicodedata.category(letter) in _CONTROLS for letter in text)


def cleaned(text: str) -> str:
    """Text with a question mark for all that a terminal would obey or hide, but for line ends."""
    if not has_controls(text):
        return text
    return "".join("?" if letter != "\n" and unicodedata.category(letter) in _CONTROLS else letter for letter in text)


def speaks_utf8(environment: Mapping[str, str]) -> bool:
    """Whether the locale is UTF-8, or the environment sets Python's encoding.

    Python gives itself LC_CTYPE=C.UTF-8 where the locale is C (PEP 538), so that alone says nothing of the terminal.
    """
    if environment.get("PYTHONIOENCODING") or environment.get("PYTHONUTF8") == "1":
        return True
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        value = environment.get(name, "")
        if value and not (name == "LC_CTYPE" and value == "C.UTF-8"):
            return "utf" in value.lower()
    return False


def shortened(text: str, most: int) -> str:
    """At most ``most`` characters, and three dots if there are more."""
    return text if len(text) <= most else f"{text[:most]}..."


def name_in_cells(name: str, cells: int = 10) -> str:
    """A name for a table: beginning and end of one that is too long, since many names differ at the end alone."""
    return name if len(name) <= cells else f"{name[: cells - 5]}~{name[-4:]}"


def on_a_line(text: str, most: int = 200) -> str:
    """Text of others as a short line: blanks joined, the rest as `printable`."""
    return shortened(printable(" ".join(text.split())), most)


def few(names: Sequence[str], most: int = 8) -> str:
    """The first names and how many there are besides: a file may have thousands."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def as_many_as_fit(lines: Sequence[str], most_bytes: int) -> list[str]:
    """The first lines that fit into ``most_bytes`` as JSON, and a line with the number of the others."""
    left = most_bytes
    for count, line in enumerate(lines):
        left -= len(json.dumps(line))
        if left < 0:
            return [*lines[:count], f"and {len(lines) - count} more"]
    return list(lines)
