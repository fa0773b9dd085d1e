"""Rates from CSV: a row per time and slice."""

from __future__ import annotations

import csv
import io
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.configs.text import few, on_a_line

from .trace import Array, RateTrace

MOST_MBPS = 1e6
MOST_SLICES = 1000
MOST_FIELD = 1000
GAP = 0.25
"""Of the usual distance of two rows of a slice, what a distance may differ by: times may be rounded."""
COLUMNS = {
    "time": ("time_s", "time", "timestamp", "t"),
    "slice": ("slice", "slice_name"),
    "rate": ("mbps", "offered_mbps", "rate_mbps", "mbit/s", "mbit_s"),
}
LONG, LONG_VALUE = ("metric", "value"), "offered_mbps"
"""Columns of a table with a row per measurement, and the metric of it that is a load."""


@dataclass
class _Rows:
    """Times (s), rates (Mbit/s) and lines of the file of a slice."""

    times_s: array[float] = field(default_factory=lambda: array("d"))
    mbps: array[float] = field(default_factory=lambda: array("d"))
    lines: array[int] = field(default_factory=lambda: array("q"))


def read_rates(content: bytes, what: str) -> dict[str, RateTrace]:
    """The trace of each slice of a file (RFC 4180) with the columns time, slice and Mbit/s.

    Times are seconds or ISO 8601, and begin at the first of the file. Every slice has a row for each bin. ``what``
    begins errors.

    Raises:
        ConfigError: a row that is not of this form, a gap, times that do not rise, a rate that cannot be.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what}: no UTF-8 text at byte {error.start}; expected CSV or a pcap file") from error
    slices: dict[str, _Rows] = {}
    for line, name, time_s, mbps in _rows(text, what):
        rows = slices.get(name)
        if rows is None:
            if len(slices) >= MOST_SLICES:
                raise ConfigError(f"{what}, line {line}: more than {MOST_SLICES} slices")
            rows = slices[name] = _Rows()
        elif time_s <= rows.times_s[-1]:
            raise ConfigError(
                f"{what}, line {line}: time of {on_a_line(name)!r} is not after that of line {rows.lines[-1]}; "
                f"expected rising times"
            )
        rows.times_s.append(time_s)
        rows.mbps.append(mbps)
        rows.lines.append(line)
    if not slices:
        raise ConfigError(f"{what}: no rows; expected the columns time, slice and Mbit/s with a row for each bin")
    return _aligned(slices, what)


def _rows(text: str, what: str) -> Iterator[tuple[int, str, float, float]]:
    """Line, slice, time in s and rate of each row of loads."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        metric, value = (header.index(name) if name in header else None for name in LONG)
        time, name, rate = (_column(header, key, what) for key in COLUMNS) if value is None else (
            _column(header, "time", what), _column(header, "slice", what), value
        )  # fmt: skip
        for row in reader:
            line = reader.line_num
            if not row:
                continue
            if len(row) != len(header):
                raise ConfigError(f"{what}, line {line}: {len(row)} fields; expected {len(header)}")
            if metric is not None and row[metric] != LONG_VALUE:
                continue
            if not row[name].strip() or len(row[name]) > MOST_FIELD:
                raise ConfigError(f"{what}, line {line}: slice = {on_a_line(row[name])!r}; expected a name")
            if not row[name].isprintable():
                raise ConfigError(f"{what}, line {line}: slice = {on_a_line(row[name])!r}: control characters")
            yield line, row[name].strip(), _moment(row[time], f"{what}, line {line}"), _rate(row[rate], what, line)
    except csv.Error as error:
        raise ConfigError(f"{what}, line {reader.line_num}: {on_a_line(str(error))}; expected CSV") from error


def _column(header: Sequence[str], key: str, what: str) -> int:
    for name in COLUMNS[key]:
        if name in header:
            return header.index(name)
    shown = few([on_a_line(name, 40) for name in header])
    raise ConfigError(
        f"{what}: no column {COLUMNS[key][0]!r} in its first line ({shown}); expected time_s, slice, mbps"
    )


def _moment(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            raise ConfigError(f"{where}: time = {on_a_line(text, 60)!r}; expected seconds or ISO 8601") from None
        value = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(value):
        raise ConfigError(f"{where}: time = {on_a_line(text, 60)}; expected a finite number of seconds")
    return value


def _rate(text: str, what: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= MOST_MBPS:
        raise ConfigError(
            f"{what}, line {line}: Mbit/s = {on_a_line(text, 60)!r}; expected a number from 0 to {MOST_MBPS:.0f}"
        )
    return value


def _aligned(slices: dict[str, _Rows], what: str) -> dict[str, RateTrace]:
    """Bins of all slices, from the file's first moment on."""
    result = {}
    first_s = min(rows.times_s[0] for rows in slices.values())
    for name, rows in slices.items():
        times = np.frombuffer(rows.times_s, np.float64) - first_s
        shown = on_a_line(name, 60)
        if len(times) < 2:
            raise ConfigError(f"{what}: {shown!r} has a single row; expected at least two, whose distance is the bin")
        width_s, steps = float(np.median(np.diff(times))), np.diff(times)
        irregular = np.flatnonzero(np.abs(steps - width_s) > GAP * width_s)
        if irregular.size:
            at = int(irregular[0])
            raise ConfigError(
                f"{what}, line {rows.lines[at + 1]}: {shown!r} has {steps[at]:g} s since its row in line "
                f"{rows.lines[at]}; expected a row every {width_s:g} s, with 0 where nothing is sent"
            )
        # The last bin is as long as bins are.
        edges = np.append(times, times[-1] + (times[-1] - times[0]) / (len(times) - 1))
        result[name] = RateTrace(edges, np.array(rows.mbps, np.float64))
    _require_same_span(result, what)
    return result


def _require_same_span(traces: dict[str, RateTrace], what: str) -> None:
    end_s = max(trace.duration_s for trace in traces.values())
    for name, trace in traces.items():
        edges: Array = trace.edges_s
        width_s = edges[-1] - edges[-2]
        if edges[0] > GAP * width_s or end_s - edges[-1] > (1.0 + GAP) * width_s:
            raise ConfigError(
                f"{what}: {on_a_line(name, 60)!r} has rows from {edges[0]:g} to {edges[-1]:g} s, the file from 0 to "
                f"{end_s:g} s; expected rows of every slice for the whole time, with 0 where nothing is sent"
            )
        edges[0], edges[-1] = 0.0, end_s  # so that all begin again together
