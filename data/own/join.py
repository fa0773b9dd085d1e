"""Join rows of several files to one table by time, slice and kept words, optionally averaged over periods."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from slicepilot.data import arrow
from slicepilot.data.faults import DatasetError
from slicepilot.data.tables.tidy import Stream

from .rows import MOST_VALUES, Floats, Ints, Rows, Words

SLICE = "slice"
FIRST = (
    "offered_mbps", "carried_mbps", "delay_us", "delay_p50_us", "delay_p99_us", "latency_ms", "loss_ratio",
    "cpu_use_mcpu", "throttled_ratio", "runqueue_delay_us", "cpu_idle_ratio", "uplink_use_ratio", "cpu_limit_mcpu",
    "nice", "egress_mbps", "packet_bytes",
)  # fmt: skip
"""Columns in this order; others follow by name."""
BATCH_ROWS = 1 << 17
_PACKETS = ("delay_us", "packet_bytes")
_HIGHEST = re.compile(r".*_(p9\d*|max)_\w+")
_LAST = frozenset({"cpu_limit_mcpu", "nice", "egress_mbps"})

Keys = list[npt.NDArray[Any]]


def joined(rows: Sequence[Rows], period_s: float | None) -> Stream:
    """One table: ``time`` (of dates), ``time_s`` since its first row, ``slice``, kept words, quantities.

    Without a period there is a row for each time and slice, with the quantities of all files that have them; what a
    file has several times of a time and slice stays as many rows. A word that a file has no column of is that of the
    other files at the same time and slice, if it is only one. With a period there is a row for each slice and period
    that has anything: means, of the highest quantile the highest, of knobs the last. Of packets (``delay_us``,
    ``packet_bytes``) a period has the median and 99th percentile of the delay, the offered rate and, of those with a
    delay, the carried rate; of captures whose direction is kept, only the uplink counts.

    Raises:
        DatasetError: a period without times; too much for a table.
    """
    if period_s is not None:
        rows = [_uplink(own) for own in rows]
    quantities = _in_order({name for own in rows for name in own.values})
    words = list(dict.fromkeys(name for own in rows for name in own.words))
    timed = all(own.time_ns is not None for own in rows)
    if not timed and (period_s is not None or any(own.time_ns is not None for own in rows)):
        other = next(own for own in rows if own.time_ns is None)
        what = "no period_s" if period_s is not None else "none"
        raise DatasetError.at(
            other.path, f"rows have no time, by which they could be joined; expected time in its entry, or {what}"
        )
    total = sum(len(own) for own in rows)
    if total * (len(quantities) + 3) > MOST_VALUES:
        raise DatasetError.at(rows[0].path, f"{total:,} rows for {len(quantities)} columns; expected a part of them")
    labels = {SLICE: _merged([own.slices for own in rows])}
    empty = [Words(np.full(len(own), -1, np.int32), ()) for own in rows]
    for name in words:
        labels[name] = _merged([own.words.get(name, none) for own, none in zip(rows, empty, strict=True)])
    times = np.concatenate([own.time_ns for own in rows if own.time_ns is not None]) if timed else None
    columns = {name: _column(rows, name) for name in quantities}
    period_ns = round((period_s or 0.0) * 1e9)
    if times is not None:
        moments = _begins(times, period_ns) if period_ns else times
        for name in words:
            labels[name] = _completed(rows, name, labels[name], moments, labels[SLICE])
        _require_single(rows, times, labels, columns)
    if not period_ns or times is None:
        table = _aligned(rows, times, labels, columns)
    else:
        table = _by_period(times, period_ns, labels, columns)
    return _stream(*table, absolute=timed and rows[0].absolute)


def added_up(parts: Sequence[Rows], name: str) -> Rows:
    """A quantity of several columns of a file as their sum for each time, slice and kept words."""
    first = parts[0]
    labels = {SLICE: first.slices} | first.words
    codes = {key: np.concatenate([(own.words | {SLICE: own.slices})[key].codes for own in parts]) for key in labels}
    times = None if first.time_ns is None else np.concatenate([own.time_ns for own in parts if own.time_ns is not None])
    keys: Keys = [np.concatenate([np.arange(len(own)) for own in parts]) if times is None else times, *codes.values()]
    order, group, starts = _grouped(keys)
    values = np.concatenate([own.values[name] for own in parts])[order]
    sums = np.bincount(group, weights=values, minlength=len(starts)).astype(np.float64)
    words = {key: Words(own[starts], labels[key].names) for key, own in codes.items()}
    slices = words.pop(SLICE)
    return Rows(first.path, None if times is None else times[starts], first.absolute, slices, {name: sums}, words)


def _uplink(own: Rows) -> Rows:
    """Of captures whose direction is kept the packets of the uplink, as figures of slices are; all rows of others."""
    direction = own.words.get("direction")
    if not own.captured or direction is None:
        return own
    up = direction.codes == direction.names.index("uplink")
    keep = up if up.any() else ~up
    return replace(
        own,
        time_ns=None if own.time_ns is None else own.time_ns[keep],
        slices=own.slices.take(keep),
        values={name: column[keep] for name, column in own.values.items()},
        words={name: words.take(keep) for name, words in own.words.items() if name != "direction"},
    )


def _require_single(rows: Sequence[Rows], times: Ints, labels: dict[str, Words], columns: dict[str, Floats]) -> None:
    """Raises DatasetError where two files have the same quantity of a slice at the same time."""
    paths = list(dict.fromkeys(own.path for own in rows))
    files = np.concatenate([np.full(len(own), paths.index(own.path)) for own in rows])
    if len(paths) == 1:
        return
    order, group, _ = _grouped([times, *(words.codes for words in labels.values())])
    for name, column in columns.items():
        there = ~np.isnan(column[order])
        own, at = group[there], files[order][there]
        clash = np.flatnonzero((np.diff(own) == 0) & (np.diff(at) != 0))
        if len(clash):
            first, second = paths[at[clash[0]]].name, paths[at[clash[0] + 1]].name
            raise DatasetError.at(
                paths[at[clash[0] + 1]],
                f"has {name} of the same slice and time as {first}; expected keep: [file] in the entry of {second}",
            )


def _in_order(names: set[str]) -> list[str]:
    return [name for name in FIRST if name in names] + sorted(names - set(FIRST))


def _merged(parts: Sequence[Words]) -> Words:
    """Columns of words below each other, words in natural order."""

    def natural(text: str) -> list[tuple[bool, int, str]]:
        return [
            (part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d{1,18})", text)
        ]

    used = {part.names[code] for part in parts for code in np.unique(part.codes).tolist() if code >= 0}
    names = sorted(used, key=natural)
    code_of = {name: number for number, name in enumerate(names)}
    codes = [np.asarray([code_of.get(name, -1) for name in part.names] + [-1], np.int32)[part.codes] for part in parts]
    return Words(np.concatenate(codes), tuple(names))


def _completed(rows: Sequence[Rows], name: str, words: Words, moments: Ints, slices: Words) -> Words:
    """A kept column, with the only word at the same time and slice in rows of files that lack the column.

    Files that share a quantity with one that has the column are not completed, because they would clash with it.
    """
    known = {quantity for own in rows if name in own.words for quantity in own.values}
    lacks = np.concatenate([np.full(len(own), name not in own.words and not known & set(own.values)) for own in rows])
    order, group, _ = _grouped([moments, slices.codes])
    there = words.codes[order] >= 0
    lowest, highest = np.full(group[-1] + 1, len(words.names)), np.full(group[-1] + 1, -1)
    np.minimum.at(lowest, group[there], words.codes[order][there])
    np.maximum.at(highest, group[there], words.codes[order][there])
    codes = words.codes.copy()
    codes[order] = np.where(lacks[order] & (lowest == highest)[group], highest[group], codes[order])
    return Words(codes, words.names)


def _column(rows: Sequence[Rows], name: str) -> Floats:
    """A quantity of all rows below each other, NaN where a file has none."""
    return np.concatenate([own.values.get(name, np.full(len(own), np.nan)) for own in rows])


Table = tuple[Ints | None, dict[str, Words], dict[str, Floats]]


def _aligned(rows: Sequence[Rows], times: Ints | None, labels: dict[str, Words], columns: dict[str, Floats]) -> Table:
    """Rows of the same time and labels put together, each with the same turn among those of its file."""
    if times is None:
        begins, numbers, total = dict[tuple[Path, int], int](), [], 0
        for own in rows:
            # As many rows of the same file are other columns of these rows.
            begin = begins.setdefault((own.path, len(own)), total)
            numbers.append(begin + np.arange(len(own)))
            total += len(own)
        times_or_rows = np.concatenate(numbers)
        turn = np.zeros(len(times_or_rows), np.int64)
    else:
        times_or_rows = times
        start, turns = 0, []
        for own in rows:
            part = slice(start, start + len(own))
            turns.append(_turns([times[part], *(words.codes[part] for words in labels.values())]))
            start += len(own)
        turn = np.concatenate(turns)
    keys: Keys = [times_or_rows, *(words.codes for words in labels.values()), turn]
    order, group, first = _grouped(keys)
    result = dict[str, Floats]()
    for name, column in columns.items():
        values = np.full(len(first), np.nan)
        there = ~np.isnan(column[order])
        values[group[there]] = column[order][there]
        result[name] = values
    kept = {name: words.take(first) for name, words in labels.items()}
    return (None if times is None else times[first]), kept, result


def _grouped(keys: Keys, then: Ints | None = None) -> tuple[Ints, Ints, Ints]:
    """Order of the rows by their keys (``then`` within a group), the number of each's group, each group's first row."""
    order = np.lexsort((*(() if then is None else (then,)), *reversed(keys)))
    new = np.zeros(len(order), np.bool_)
    new[:1] = True
    for key in keys:
        new[1:] |= np.diff(key[order]) != 0
    return order, np.cumsum(new) - 1, order[new]


def _turns(keys: Keys) -> Ints:
    """How manieth each row is among those of its keys (N,)."""
    order, group, _ = _grouped(keys)
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    result = np.empty(len(order), np.int64)
    result[order] = np.arange(len(order)) - starts[group]
    return result


def _begins(times: Ints, period_ns: int) -> Ints:
    """When the period of each row begins: whole periods since 1970 for dates, else since the first row."""
    first = 0 if times.min() > 10**18 else times.min()
    return (times - first) // period_ns * period_ns + first


def _by_period(times: Ints, period_ns: int, labels: dict[str, Words], columns: dict[str, Floats]) -> Table:
    """Combine the rows of the same period and labels."""
    begin = _begins(times, period_ns)
    order, group, first = _grouped([begin, *(words.codes for words in labels.values())], times)
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    result: dict[str, Floats] = {}
    for name, column in columns.items():
        if name not in _PACKETS:
            result[name] = _combined(name, column[order], starts)
    result |= _of_packets(
        {name: columns[name][order] for name in _PACKETS if name in columns}, starts, period_ns, result
    )
    return (
        begin[first],
        {name: words.take(first) for name, words in labels.items()},
        {name: result[name] for name in _in_order(set(result))},
    )


def _combined(name: str, column: Floats, starts: Ints) -> Floats:
    """A quantity of each group of rows, in order of time."""
    there = ~np.isnan(column)
    counts = np.add.reduceat(there.astype(np.int64), starts)
    if name in _LAST:
        at = np.maximum.reduceat(np.where(there, np.arange(len(column)), -1), starts)
        return np.where(at >= 0, column[at], np.nan)
    if _HIGHEST.fullmatch(name):
        highest = np.maximum.reduceat(np.where(there, column, -np.inf), starts)
        return np.where(counts > 0, highest, np.nan)
    sums = np.add.reduceat(np.where(there, column, 0.0), starts)
    return np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)


def _of_packets(
    packets: dict[str, Floats], starts: Ints, period_ns: int, known: dict[str, Floats]
) -> dict[str, Floats]:
    """What the packets of each period say of it, where nothing else does."""
    result: dict[str, Floats] = {}
    delay, size = packets.get("delay_us"), packets.get("packet_bytes")
    if delay is not None:
        for name, quantile in (("delay_p50_us", 0.5), ("delay_p99_us", 0.99)):
            if name not in known:
                result[name] = _quantiles(delay, starts, quantile)
    if size is not None:
        there, per_s = ~np.isnan(size), 8.0 * 1e9 / period_ns / 1e6
        bits = np.where(there, size, 0.0) * per_s
        groups = np.add.reduceat(there.astype(np.int64), starts) > 0
        rates = {"offered_mbps": bits}
        if delay is not None:
            rates["carried_mbps"] = np.where(np.isnan(delay), 0.0, bits)
        for name, own in rates.items():
            if name not in known:
                result[name] = np.where(groups, np.add.reduceat(own, starts), np.nan)
    return result


def _quantiles(column: Floats, starts: Ints, quantile: float) -> Floats:
    parts = (part[~np.isnan(part)] for part in np.split(column, starts[1:]))
    return np.asarray([np.quantile(part, quantile) if len(part) else np.nan for part in parts], np.float64)


def _stream(times: Ints | None, labels: dict[str, Words], columns: dict[str, Floats], *, absolute: bool) -> Stream:
    """Rows in order of time and slice, as they are written."""
    words = pa.dictionary(pa.int32(), pa.string())
    fields: list[tuple[str, Any]] = []
    arrays: list[Any] = []
    if times is not None:
        keys: Any = (*(word.codes for word in reversed(labels.values())), times)
        order = np.lexsort(keys)
        times = times[order]
        labels = {name: word.take(order) for name, word in labels.items()}
        columns = {name: column[order] for name, column in columns.items()}
        if absolute:
            fields.append(("time", pa.timestamp("us", "UTC")))
            arrays.append(arrow.numbers(times // 1000, pa.timestamp("us", "UTC")))
        fields.append(("time_s", pa.float64()))
        arrays.append(arrow.numbers((times - times[0]) / 1e9 if absolute else times / 1e9))
    for name, word in labels.items():
        there = word.codes >= 0
        codes = arrow.numbers(np.where(there, word.codes, 0).astype(np.int32), valid=None if there.all() else there)
        fields.append((name, words))
        arrays.append(pa.DictionaryArray.from_arrays(codes, pa.array(list(word.names), pa.string())))
    for name, column in columns.items():
        missing = np.isnan(column)
        fields.append((name, pa.float64()))
        arrays.append(arrow.numbers(column, valid=None if not missing.any() else ~missing))
    schema = pa.schema(fields)
    whole = pa.Table.from_arrays(arrays, schema=schema)
    return Stream(schema, iter(whole.to_batches(max_chunksize=BATCH_ROWS)), tuple(labels))
