"""Text that others have chosen, such as names of processes and interfaces, and what programs answer."""

from __future__ import annotations

import json
from collections.abc import Sequence


def printable(text: str) -> str:
    """For people and files, on one line: a question mark for each line end, terminal code, or half of a character."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def shortened(text: str, most: int) -> str:
    """Its first so many characters, and three dots where there are more."""
    return text if len(text) <= most else f"{text[:most]}..."


def as_many_as_fit(lines: Sequence[str], most_bytes: int) -> list[str]:
    """The first lines, as many as take no more than that as JSON, and how many more there are."""
    left = most_bytes
    for count, line in enumerate(lines):
        left -= len(json.dumps(line))
        if left < 0:
            return [*lines[:count], f"and {len(lines) - count} more"]
    return list(lines)
