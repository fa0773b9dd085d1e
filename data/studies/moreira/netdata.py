"""Tables that Netdata's cgroup collector exported, one column per chart and dimension, as tidy columns with units.

Units are those of Netdata's documentation (learn.netdata.cloud, "Containers and VMs", metrics of ``cgroup.*``). What it
counts in kilobits becomes Mbit/s; what leaves is negative there and positive here.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slicepilot.data.csv.blocks import oldest_first, read_blocks
from slicepilot.data.csv.chunks import OnProgress
from slicepilot.data.faults import DatasetError, Faults, require_rows
from slicepilot.data.own.rows import MOST_VALUES, date_ns
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
        DatasetError: as `read_blocks` does; more than `MOST_VALUES`; names that would be the same; rates that are not
            in kilobits/s; no row that can be used.
    """
    table, lines = _read(path, faults, on_progress)
    columns = [tidy_column(name) for name in table.column_names if name != "time"]
    names = [*FIXED.names, *(column.name for column in columns)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DatasetError.at(path, f"columns: {', '.join(twice)}: several columns would have this name", 1)
    times, known = _times(table)
    faults.add_many("number", lines[~known], "time", table.column("time").filter(~known).to_pylist())
    negative = np.zeros(len(lines), np.bool_)
    values, fields = {}, []
    for column in columns:
        numbers = column.factor * table.column(column.source).to_numpy()
        values[column.name] = np.abs(numbers) if column.leaving else numbers
        if column.source_unit is None:
            faults.add("unknown", 1, "column", column.source, left_out=False)
        else:
            negative |= values[column.name] < 0
        metadata = {"source": column.source, "source_unit": column.source_unit or "unknown"}
        fields.append(pa.field(column.name, pa.float64(), metadata=metadata))
    faults.add_many("range", lines[known & negative], "a negative figure")
    keep = _seconds_once(times, known & ~negative, lines, faults)
    empty = np.any([np.isnan(numbers) for numbers in values.values()], axis=0) if values else ~known
    faults.add_many("missing", lines[keep & empty], "empty fields", left_out=False)
    _check_rates(path, values, keep, lines, faults)
    count = int(keep.sum())
    require_rows(path, count, faults, "times such as 2025-07-25 22:20:21 or seconds since 1970, figures above zero")
    own = [np.full(count, run.qfi), [run.condition] * count]
    own += [times[keep].astype("datetime64[s]").astype("datetime64[ms]"), times[keep] - times[keep][0]]
    arrays = [pa.array(part, field.type) for part, field in zip(own, FIXED, strict=True)]
    arrays += [pa.array(numbers[keep], from_pandas=True) for numbers in values.values()]
    schema = pa.schema([*FIXED, *fields])
    return Stream(schema, iter([pa.record_batch(arrays, schema)]), GROUPS)


def _read(path: Path, faults: Faults, on_progress: OnProgress | None) -> tuple[Any, Any]:
    """The file as it is, oldest row first, and the line of each row (N,)."""
    types = {"time": pa.string()}
    blocks = read_blocks(path, types, faults, others=pa.float64(), nullable=True, on_progress=on_progress)
    tables, lines, held = [], [], 0
    for block in oldest_first(path, blocks, lambda block: _times(block.table)[0], faults):
        tables.append(block.table)
        lines.append(block.lines())
        held += len(block) * block.table.num_columns
        if held > MOST_VALUES:
            raise DatasetError.at(path, f"more than {MOST_VALUES:,} values; expected a part of it", int(lines[-1][-1]))
    return pa.concat_tables(tables), np.concatenate(lines)


def _times(table: Any) -> tuple[Any, Any]:
    """Seconds since 1970 of each row (N,), and where there are any."""
    seconds = [_seconds(text) for text in table.column("time").to_pylist()]
    known = np.asarray([second is not None for second in seconds], np.bool_)
    return np.asarray([second or 0 for second in seconds], np.int64), known


def _seconds(text: str) -> int | None:
    """Whole seconds since 1970 of a time; None for other texts."""
    if match := _SINCE_1970.fullmatch(text):
        return int(match[1] or match[2])
    moment = date_ns(text, datetime.UTC)
    return None if moment is None else moment // 1_000_000_000


def _seconds_once(times: Any, known: Any, lines: Any, faults: Faults) -> Any:
    """The known rows (N,), each second once; seconds that come twice, go back or lack before a row are noted."""
    rows = np.flatnonzero(known)
    first = np.zeros(len(rows), np.bool_)
    first[np.unique(times[rows], return_index=True)[1]] = True
    faults.add_many("duplicate", lines[rows[~first]], "time", times[rows[~first]].astype("datetime64[s]"))
    rows = rows[first]
    before, own, at = np.maximum.accumulate(times[rows])[:-1], times[rows][1:], lines[rows][1:]
    back, gap = own < before, own > before + 1
    faults.add_many("clock", at[back], "time", own[back].astype("datetime64[s]"), left_out=False)
    lacking = [f"{count} s before" for count in (own - before - 1)[gap].tolist()]
    faults.add_many("missing", at[gap], "time", lacking, left_out=False)
    keep = np.zeros_like(known)
    keep[rows] = True
    return keep


def _check_rates(path: Path, values: dict[str, Any], keep: Any, lines: Any, faults: Faults) -> None:
    """Note rows whose packets have too few or too many bits; raises DatasetError if rates cannot be in kilobits/s."""
    compared, first = 0, None
    for rate in sorted(name for name in values if name.endswith("_mbps")):
        packets = values.get(rate.replace("net_", "net_packets_").replace("_mbps", "_pps"))
        if packets is None:
            continue
        rows = np.flatnonzero(keep & (packets >= _FEW_PACKETS))
        bits = 1e6 * values[rate][rows] / packets[rows]
        odd = (bits < BITS_PER_PACKET[0]) | (bits > BITS_PER_PACKET[1])
        compared += len(rows)
        faults.add_many("unit", lines[rows[odd]], rate, values[rate][rows[odd]].tolist(), left_out=False)
        if odd.any() and first is None:
            first = int(lines[rows[odd]][0]), rate, float(bits[odd][0])
    if first is not None and faults.counts["unit"] > MIXED_SHARE * compared:
        line, rate, each = first
        raise DatasetError.at(
            path, f"{rate}: {each:.3g} bits a packet; expected rates in kilobits/s, as Netdata has them", line
        )
