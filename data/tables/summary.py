"""What a table holds, in one pass: rows, spans of its columns, rows of each group."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute

from .tidy import Stream, unit_of

compute: Any = pyarrow.compute  # its functions are made when it is loaded

MOST_GROUPS = 1000
"""Values of a column that are counted; none are with more."""


@dataclass
class ColumnSummary:
    """One column; ``low`` and ``high`` are None for texts and where there is no value."""

    kind: str
    unit: str | None
    nulls: int = 0
    low: Any = None
    high: Any = None

    def add(self, column: Any) -> None:
        """More rows."""
        self.nulls += column.null_count
        if pa.types.is_string(column.type) or pa.types.is_dictionary(column.type):
            return
        span = compute.min_max(column).as_py()
        low, high = span["min"], span["max"]
        if low is not None and not (isinstance(low, float) and math.isnan(low)):
            self.low = low if self.low is None else min(self.low, low)
            self.high = high if self.high is None else max(self.high, high)


@dataclass
class Summary:
    """A whole table.

    Attributes:
        groups: rows by value, of each column that says what a row belongs to; None where there are too many values.
    """

    rows: int
    columns: dict[str, ColumnSummary]
    groups: dict[str, Counter[str] | None] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "rows": self.rows,
            "columns": {
                name: {"type": c.kind, "unit": c.unit, "nulls": c.nulls, "min": _plain(c.low), "max": _plain(c.high)}
                for name, c in self.columns.items()
            },
            "groups": {name: None if counts is None else dict(counts) for name, counts in self.groups.items()},
        }


def summarise(stream: Stream, on_rows: Callable[[int], None] | None = None) -> Summary:
    """Read a table to its end; raises what reading it raises."""
    names = stream.schema.names
    columns = {f.name: ColumnSummary(str(f.type), unit_of(f.name)) for f in stream.schema}
    summary = Summary(0, columns, {name: Counter() for name in stream.groups if name in names})
    for batch in stream.batches:
        summary.rows += batch.num_rows
        for name, column in zip(names, batch.columns, strict=True):
            columns[name].add(column)
        for name in summary.groups:
            summary.groups[name] = _counted(summary.groups[name], batch.column(name))
        if on_rows is not None:
            on_rows(summary.rows)
    return summary


def _counted(counts: Counter[str] | None, column: Any) -> Counter[str] | None:
    if counts is None:
        return None
    for pair in compute.value_counts(column).to_pylist():
        value = pair["values"]
        counts["none" if value is None else str(value)] += pair["counts"]
    return counts if len(counts) <= MOST_GROUPS else None


def _plain(value: Any) -> Any:
    """A number, None for one that is not finite, or a time as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (int, float, type(None))) else str(value)
