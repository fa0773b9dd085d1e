"""Faults of a file that was read: bad rows, counted and shown with their line numbers, and unusable files.

Rows that cannot be used are left out, suspicious rows are kept, and both are noted. Nothing is left out without a note.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError

EXAMPLES = 20  # faults of a kind that are kept with line and value
SHOWN = 60  # characters of a value

FaultKind = Literal[
    "columns", "number", "text", "line", "document", "range", "grid", "unit", "mismatch", "clock", "duplicate",
    "truncated", "missing", "unknown", "unanswered", "control",
]  # fmt: skip
"""Kinds of faults."""
MEANINGS: dict[FaultKind, str] = {
    "columns": "rows with too many or too few fields",
    "number": "fields that are no number of their column's type",
    "text": "fields that are not UTF-8",
    "control": "texts with control characters",
    "line": "lines that are not of the format",
    "document": "documents that cannot be read",
    "range": "values outside what is possible",
    "grid": "times between the steps of the measurement",
    "unit": "values in another unit than the rest",
    "mismatch": "rows whose figures contradict each other",
    "clock": "rows whose clock goes backwards",
    "duplicate": "rows that occur twice",
    "truncated": "last rows that were cut off",
    "missing": "values or rows that should be there",
    "unknown": "names that the format does not know",
    "unanswered": "round trips of 0 although the slice had traffic: no ping was answered",
}
"""How each `FaultKind` of fault is described."""


class DatasetError(ConfigError):
    """An unusable file; the message has its name, the line in it, what is wrong and what is expected."""

    @classmethod
    def at(cls, path: str | Path, problem: str, line: int | None = None) -> DatasetError:
        """The error for a file and, if given, a line of it (from 1)."""
        where = f"{path}" if line is None else f"{path}, line {line}"
        return cls(f"{where}: {problem}")


def require_rows(path: Path, good: int, faults: Faults, expected: str | None = None) -> None:
    """Raises DatasetError, with the faults noted so far, if no row of the file is good."""
    if not good:
        more = "" if expected is None else f"; expected {expected}"
        summary = "; ".join(faults.describe())
        raise DatasetError.at(path, f"none of its {faults.left_out} rows can be used: {summary}{more}")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a row.

    Attributes:
        line: physical line in the file, from 1, the header included; number of the document where there are no lines.
        kind: one of `MEANINGS`.
        column: the column at fault; None for the whole row.
        value: the faulty value, shortened.
    """

    line: int
    kind: FaultKind
    column: str | None = None
    value: str | None = None

    def __str__(self) -> str:
        """``line 17: delay_us = 'abc'``."""
        parts = [part for part in (self.column, None if self.value is None else f"'{self.value}'") if part]
        return f"line {self.line}: {' = '.join(parts)}" if parts else f"line {self.line}"


class Faults:
    """All faults of a file: exact counts for each kind, the first `EXAMPLES` of each with line and value.

    Attributes:
        left_out: rows that a reader did not hand on.
        notes: what a reader made of the file, without any fault of its rows.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self.notes: list[str] = []
        self._counts: dict[FaultKind, int] = {}
        self._first: dict[FaultKind, list[Fault]] = {}

    def note(self, text: str) -> None:
        """Note something of the whole file, once."""
        if text not in self.notes:
            self.notes.append(text)

    def add(
        self, kind: FaultKind, line: int, column: str | None = None, value: object = None, *, left_out: bool = True
    ) -> None:
        """Note a fault; ``left_out`` says whether the row is dropped (True) or kept (False)."""
        self.add_many(kind, [line], column, None if value is None else [value], left_out=left_out)

    def add_many(
        self,
        kind: FaultKind,
        lines: npt.ArrayLike,
        column: str | None = None,
        values: Sequence[object] | npt.NDArray[Any] | None = None,
        *,
        left_out: bool = True,
    ) -> None:
        """Note faults of the same kind in many lines (N,), each with its value of (N,) values, if any are given.

        If the lines ascend, the values of the first `EXAMPLES` are enough.
        """
        numbers = np.asarray(lines, np.int64)
        if not numbers.size:
            return
        self._counts[kind] = self._counts.get(kind, 0) + numbers.size
        self.left_out += numbers.size if left_out else 0
        first = self._first.setdefault(kind, [])
        if len(first) == EXAMPLES and numbers.min() >= first[-1].line:
            return
        # Several checks of the same rows may note the same kind, so lines may be out of order.
        for index in np.argsort(numbers, kind="stable")[:EXAMPLES]:
            value = None if values is None else shown(values[index])
            first.append(Fault(int(numbers[index]), kind, column, value))
        first.sort(key=lambda fault: fault.line)
        del first[EXAMPLES:]

    @property
    def counts(self) -> dict[FaultKind, int]:
        return dict(self._counts)

    @property
    def total(self) -> int:
        return sum(self._counts.values())

    def __bool__(self) -> bool:
        return bool(self._counts)

    def examples(self, kind: FaultKind | None = None) -> list[Fault]:
        """The first faults of a kind or of all kinds, by line."""
        chosen: Iterable[list[Fault]] = self._first.values() if kind is None else [self._first.get(kind, [])]
        return sorted((fault for faults in chosen for fault in faults), key=lambda fault: fault.line)

    def describe(self) -> list[str]:
        """One line of text for each kind: how many, and the first three."""
        texts = []
        for kind, count in self._counts.items():
            few = "; ".join(str(fault) for fault in self.examples(kind)[:3])
            texts.append(f"{kind}: {count:,} {MEANINGS[kind]} ({few}{'; ...' if count > 3 else ''})")
        return texts

    def to_json(self) -> dict[str, Any]:
        """Counts and first examples as plain values."""
        return {
            "total": self.total,
            "left_out": self.left_out,
            "notes": list(self.notes),
            "kinds": {
                kind: {
                    "count": count,
                    "first": [
                        {"line": fault.line, "column": fault.column, "value": fault.value}
                        for fault in self.examples(kind)
                    ],
                }
                for kind, count in self._counts.items()
            },
        }


def shown(value: object) -> str:
    """A value as a short line of printable text."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    text = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
