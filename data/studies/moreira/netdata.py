"""Tables that Netdata's cgroup collector exported, one column per chart and dimension, as tidy columns with units.

Units are those of Netdata's documentation (learn.netdata.cloud, "Containers and VMs", metrics of ``cgroup.*``). What it
counts in kilobits becomes Mbit/s; what leaves is negative there and positive here.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slicepilot.data.csv.blocks import Block, oldest_first, read_blocks
from slicepilot.data.csv.chunks import OnProgress
from slicepilot.data.faults import DatasetError, Faults, require_rows
from slicepilot.data.own.rows import date_ns
from slicepilot.data.tables.tidy import Stream

from .tables import Run

_SINCE_1970 = re.compile(r"(\d{1,12})(?:\.\d*)?|(\d{10})\d{3}(?:\.\d*)?")
"""Seconds, or 13 digits of milliseconds, as Netdata has them with its option "ms": as seconds, the year 33658."""
GROUPS = ("qfi", "condition")
FIXED = pa.schema(
    [("qfi", pa.int16()), ("condition", pa.string()), ("time", pa.timestamp("ms")), ("time_s", pa.int64())]
)
"""The columns that every table has; all others are float64."""
MIXED_SHARE = 0.05  # of rows with impossible packets that make a file unusable
BITS_PER_PACKET = (8 * 40.0, 8 * 65_536.0)  # an IPv4 header with TCP's, and what segmentation offload hands on at once
_FEW_PACKETS = 10.0


@dataclass(frozen=True)
class Column:
    """What a column of the file becomes.

    Attributes:
        name: in the tidy table, with its unit.
        source_unit: None where the column is not known; it is kept as it is then.
        factor: to the tidy table's unit.
        leaving: Netdata shows it below zero.
    """

    source: str
    name: str
    source_unit: str | None
    factor: float = 1.0
    leaving: bool = False


_CHARTS: tuple[tuple[str, str, str, float], ...] = (
    (r"cpu_(user|system)", "cpu_{0}_pct", "percentage", 1.0),
    (r"cpu_limit_used", "cpu_limit_used_pct", "percentage", 1.0),
    (r"mem_utilization_utilization", "mem_utilization_pct", "percentage", 1.0),
    (r"mem_(\w+)", "mem_{0}_mib", "MiB", 1.0),
    (r"pgfaults_(\w+)", "pgfaults_{0}_mibps", "MiB/s", 1.0),
    (r"io_(\w+)", "io_{0}_kibps", "KiB/s", 1.0),
    (r"net_packets_(\w+)", "net_packets_{0}_pps", "packets/s", 1.0),
    (r"net_((?:errors|drops|fifo|events)_\w+)", "net_{0}_per_s", "events/s", 1.0),
    (r"net_(\w+_(?:received|sent))", "net_{0}_mbps", "kilobits/s", 1e-3),
)
_LEAVING = re.compile(r".*_(sent|write|written|outbound|transmit)")


def tidy_column(source: str) -> Column:
    """What a column of the file becomes."""
    for pattern, name, unit, factor in _CHARTS:
        if result := re.fullmatch(pattern, source):
            return Column(source, name.format(*result.groups()), unit, factor, bool(_LEAVING.fullmatch(source)))
    return Column(source, source, None)


def read_resources(path: Path, run: Run, faults: Faults, on_progress: OnProgress | None = None) -> Stream:
    """The rows of a merged file: qfi, condition, time, time_s since the first row, and a column per dimension.

    Args:
        path: a CSV file with ``time`` (``2025-07-25 22:20:21``, whose time zone is not stated, also with ``T`` between
            and with a fraction, which is cut off; with ``Z`` or an offset such as ``+02:00`` it becomes UTC; or seconds
            or milliseconds since 1970). Where the newest row is first, rows are sorted, which is noted.
        faults: those of `slicepilot.data.csv.blocks.read_blocks`, and ``number`` (no time), ``clock``, ``duplicate``
            (seconds that occur twice), ``missing`` (seconds that lack, and rows with empty fields), ``range``
            (negative, in known columns), ``unit`` (impossible packets), ``unknown`` (columns kept as they are).

    Raises:
        DatasetError: as `read_blocks` does; names that would be the same; or, as rows are read, rates that are not in
            kilobits/s, and no row that can be used.
    """
    types = {"time": pa.string()}
    blocks = read_blocks(path, types, faults, others=pa.float64(), nullable=True, on_progress=on_progress)
    blocks = oldest_first(path, blocks, lambda block: _times(block)[0], faults)
    first = next(blocks, None)
    if first is None:
        raise DatasetError.at(path, "no rows; expected a table of Netdata with a column 'time'")
    columns = [tidy_column(name) for name in first.table.column_names if name != "time"]
    names = [*FIXED.names, *(column.name for column in columns)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DatasetError.at(path, f"columns: {', '.join(twice)}: several columns would have this name", 1)
    for column in columns:
        if column.source_unit is None:
            faults.add("unknown", 1, "column", column.source, left_out=False)
    fields = [
        pa.field(c.name, pa.float64(), metadata={"source": c.source, "source_unit": c.source_unit or "unknown"})
        for c in columns
    ]
    schema = pa.schema([*FIXED, *fields])
    return Stream(schema, _batches(path, run, faults, columns, schema, first, blocks), GROUPS)


def _batches(
    path: Path, run: Run, faults: Faults, columns: list[Column], schema: Any, first: Block, rest: Iterator[Block]
) -> Iterator[Any]:
    clock, rates = _Clock(faults), _Rates(path, columns, faults)
    block: Block | None = first
    good = 0
    while block is not None:
        times, known = _times(block)
        faults.add_many("number", block.lines()[~known], "time", block.table.column("time").filter(~known).to_pylist())
        negative = np.zeros(len(block), np.bool_)
        values = {}
        for column in columns:
            numbers = column.factor * block.table.column(column.source).to_numpy()
            values[column.name] = np.abs(numbers) if column.leaving else numbers
            if column.source_unit is not None:
                negative |= values[column.name] < 0
        keep = clock.check(block.lines(), times, known & ~negative)
        faults.add_many("range", block.lines()[known & negative], "a negative figure")
        empty = np.any([np.isnan(numbers) for numbers in values.values()], axis=0) if values else ~known
        faults.add_many("missing", block.lines()[keep & empty], "empty fields", left_out=False)
        rates.check(block.lines(), values, keep)
        good += int(keep.sum())
        own = [np.full(keep.sum(), run.qfi), [run.condition] * int(keep.sum())]
        own += [times[keep].astype("datetime64[s]").astype("datetime64[ms]"), times[keep] - clock.start]
        arrays = [pa.array(part, field.type) for part, field in zip(own, FIXED, strict=True)]
        arrays += [pa.array(values[column.name][keep], from_pandas=True) for column in columns]
        yield pa.record_batch(arrays, schema)
        block = next(rest, None)
    rates.end()
    require_rows(path, good, faults, "times such as 2025-07-25 22:20:21 or seconds since 1970, figures above zero")


def _times(block: Block) -> tuple[Any, Any]:
    """Seconds since 1970 of each row (N,), and where there are any."""
    seconds = [_seconds(text) for text in block.table.column("time").to_pylist()]
    known = np.asarray([second is not None for second in seconds], np.bool_)
    return np.asarray([second or 0 for second in seconds], np.int64), known


def _seconds(text: str) -> int | None:
    """Whole seconds since 1970 of a time; None for other texts."""
    if match := _SINCE_1970.fullmatch(text):
        return int(match[1] or match[2])
    moment = date_ns(text, datetime.UTC)
    return None if moment is None else moment // 1_000_000_000


class _Clock:
    """Whether each second comes once, in order and without holes."""

    def __init__(self, faults: Faults) -> None:
        self.start = 0
        self._faults = faults
        self._seen: set[int] = set()
        self._last: int | None = None

    def check(self, lines: Any, times: Any, known: Any) -> Any:
        """Which rows (N,) are to be kept."""
        keep = known.copy()
        for row in np.flatnonzero(known).tolist():
            time, line = int(times[row]), int(lines[row])
            if self._last is None:
                self.start = time
            if time in self._seen:
                self._faults.add("duplicate", line, "time", np.datetime64(time, "s"))
                keep[row] = False
                continue
            if self._last is not None and time < self._last:
                self._faults.add("clock", line, "time", np.datetime64(time, "s"), left_out=False)
            elif self._last is not None and time > self._last + 1:
                self._faults.add("missing", line, "time", f"{time - self._last - 1} s before", left_out=False)
            self._seen.add(time)
            self._last = time if self._last is None else max(self._last, time)
        return keep


class _Rates:
    """Whether rates and packets fit together: a packet has so many bits at least and at most."""

    def __init__(self, path: Path, columns: list[Column], faults: Faults) -> None:
        self._path, self._faults = path, faults
        names = {column.name for column in columns}
        pairs = ((name, name.replace("net_", "net_packets_").replace("_mbps", "_pps")) for name in sorted(names))
        self._pairs = [(rate, packets) for rate, packets in pairs if rate.endswith("_mbps") and packets in names]
        self._rows = self._odd = 0
        self._first: tuple[int, str, float] | None = None

    def check(self, lines: Any, values: dict[str, Any], keep: Any) -> None:
        """Note the rows with impossible packets."""
        for rate, packets in self._pairs:
            rows = np.flatnonzero(keep & (values[packets] >= _FEW_PACKETS))
            bits = 1e6 * values[rate][rows] / values[packets][rows]
            odd = (bits < BITS_PER_PACKET[0]) | (bits > BITS_PER_PACKET[1])
            self._rows += len(rows)
            self._odd += int(odd.sum())
            if odd.any() and self._first is None:
                first = int(np.flatnonzero(odd)[0])
                self._first = (int(lines[rows[first]]), rate, float(bits[first]))
            self._faults.add_many("unit", lines[rows[odd]], rate, values[rate][rows[odd]].tolist(), left_out=False)

    def end(self) -> None:
        """Raise DatasetError if the rates cannot be in kilobits/s."""
        if self._first is not None and self._odd > MIXED_SHARE * self._rows:
            line, rate, bits = self._first
            raise DatasetError.at(
                self._path,
                f"{rate}: {bits:.3g} bits a packet; expected rates in kilobits/s, as Netdata has them",
                line,
            )
