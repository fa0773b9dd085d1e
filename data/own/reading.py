"""Files as a map says: read, renamed, in the units of the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError, did_you_mean
from slicepilot.configs.text import printable
from slicepilot.data.csv.chunks import COMPRESSED, read_start
from slicepilot.data.faults import DatasetError, Faults

from .columns import read_parquet
from .crossings import read_captures
from .csv_files import read_csv
from .join import added_up
from .json_files import ORIGIN, SERIES, VALUE, read_iperf3, read_netdata_json, read_prometheus
from .map import FILE, DataMap, FileMap, Mapped, entries_of
from .ping_files import read_ping
from .rows import LIMITS, Floats, Ints, Raw, Rows, Words, date_ns, zone_of

Reader = Callable[[Path, FileMap, Faults], Raw]
_NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
LONGEST_NAME = 63


def read_files(data_map: DataMap, paths: Sequence[Path], faults: Faults) -> list[Rows]:
    """The rows of all files; captures of an entry are read together.

    Raises:
        DatasetError: a file that cannot be used; ConfigError: a file without an entry, or the other way round.
    """
    result: list[Rows] = []
    done: set[int] = set()
    slice_words: dict[int, list[str]] = {}
    every = entries_of(data_map, paths)
    for path, entry in every:
        if entry.format != "pcap":
            raw = _READERS[entry.format](path, entry, faults)
        elif id(entry) in done:
            continue
        else:
            done.add(id(entry))
            raw = read_captures([other for other, own in every if own is entry], entry, faults)
        if not raw.rows:
            raise DatasetError.at(path, "no row can be used: " + ("; ".join(faults.describe()) or "it has none"))
        if without := next((name for name in entry.labels if name not in raw.words), None):
            raise DatasetError.at(
                path, f"column {without!r}: {entry.format} has no columns of words; expected slice_name, or {FILE}"
            )
        if raw.time_ns is None:
            faults.note(f"{path.name}: rows have no time")
        raw = replace(raw, words=raw.words | {FILE: Words.all_of(stem_of(path), raw.rows)})
        if entry.slice is not None:
            slice_words.setdefault(id(entry), []).extend(raw.words[entry.slice].names)
        own = mapped(path, raw, entry, faults)
        if all(np.isnan(column).all() for rows in own for column in rows.values.values()):
            raise DatasetError.at(path, "no value can be used: " + ("; ".join(faults.describe()) or "all are empty"))
        result += own
    for path, entry in every:
        there = dict.fromkeys(slice_words.get(id(entry), ()))
        unknown = next((name for name in entry.slices if name not in there), None)
        if entry.slice is not None and unknown is not None:
            near = did_you_mean(unknown, list(there)[:50])
            raise DatasetError.at(path, f"slices.{unknown}: not in {entry.slice}; {near}")
    _require_same_clock(result)
    return result


def _read_netdata(path: Path, entry: FileMap, faults: Faults) -> Raw:
    is_json = read_start(path, 64).lstrip()[:1] == b"{"
    raw = (read_netdata_json if is_json else read_csv)(path, entry, faults)
    # What leaves is below zero there, so that a chart shows it below the axis.
    leaving = {name: -column for name, column in raw.values.items() if not (column > 0).any()}
    return replace(raw, values=raw.values | leaving)


_READERS: dict[str, Reader] = {
    "csv": read_csv,
    "parquet": read_parquet,
    "prometheus": read_prometheus,
    "netdata": _read_netdata,
    "iperf3": read_iperf3,
    "ping": read_ping,
}


def mapped(path: Path, raw: Raw, entry: FileMap, faults: Faults) -> list[Rows]:
    """Rows of the table out of those of a file.

    Raises:
        DatasetError: no row of a quantity that the map names; several columns for one quantity of a slice.
    """
    time_ns, absolute = _started(path, raw, entry)
    slices = _slices(raw, entry)
    kept = {table_name(name): raw.words[name] for name in entry.keep}
    if entry.is_long or entry.format == "prometheus":
        quantity, value = (entry.quantity, entry.value) if entry.is_long else (SERIES, VALUE)
        return _long(path, raw, entry, (quantity or "", value or ""), (time_ns, absolute), slices, kept, faults)
    groups: dict[str | None, dict[str, Floats]] = {}
    for name, column in entry.columns.items():
        values = _converted(path, raw.values[name], column, time_ns, [slices, *kept.values()])
        own = groups.setdefault(column.slice, {})
        if column.quantity in own and not column.sum:
            raise DatasetError.at(
                path, f"columns.{name}: a second column of {column.quantity}; expected another quantity, or sum: true"
            )
        own[column.quantity] = own[column.quantity] + values if column.quantity in own else values
    result = []
    for slice_name, columns in groups.items():
        named = slices if slice_name is None else Words.all_of(slice_name, raw.rows)
        there = named.codes >= 0
        if not there.all():
            faults.add_many("missing", raw.lines[~there], entry.slice)
        result.append(
            Rows(
                path,
                None if time_ns is None else time_ns[there],
                absolute,
                named.take(there),
                {name: column[there] for name, column in columns.items()},
                {name: words.take(there) for name, words in kept.items()},
                captured=entry.format == "pcap",
            )
        )
    return result


def _long(
    path: Path,
    raw: Raw,
    entry: FileMap,
    columns: tuple[str, str],
    time: tuple[Ints | None, bool],
    slices: Words,
    kept: dict[str, Words],
    faults: Faults,
) -> list[Rows]:
    """Rows by quantity, of a table with a row for each value."""
    words, values = raw.words[columns[0]], raw.values[columns[1]]
    codes = {name: code for code, name in enumerate(words.names)}
    left_out = [name for name in words.names if name not in entry.columns]
    if left_out:
        faults.note(f"left out: {', '.join(left_out[:20])} in {columns[0]}, which the map does not name")
    result: dict[tuple[str, str | None], list[Rows]] = {}
    for name, column in entry.columns.items():
        if name not in codes:
            if entry.format == "prometheus":
                raise DatasetError.at(path, f"columns.{name}: no series fits; expected labels of an existing series")
            raise DatasetError.at(path, f"columns.{name}: not in {columns[0]}; {did_you_mean(name, words.names)}")
        here = (words.codes == codes[name]) & (slices.codes >= 0)
        own = slices.take(here) if column.slice is None else Words.all_of(column.slice, int(here.sum()))
        stamps = None if time[0] is None else time[0][here]
        labels = {key: word.take(here) for key, word in kept.items()}
        origin = [raw.words[ORIGIN].take(here)] if ORIGIN in raw.words else []
        converted = _converted(path, values[here], column, stamps, [own, *labels.values(), *origin])
        parts = result.setdefault((column.quantity, column.slice), [])
        if parts and not column.sum:
            raise DatasetError.at(
                path, f"columns.{name}: a second one of {column.quantity}; expected another quantity, or sum: true"
            )
        parts.append(Rows(path, stamps, time[1], own, {column.quantity: converted}, labels))
    summed = {column.quantity for column in entry.columns.values() if column.sum}
    missing = slices.codes < 0
    faults.add_many("missing", raw.lines[missing], entry.slice)
    return [
        added_up(parts, name) if name in summed else part for (name, _), parts in result.items() for part in parts[:1]
    ]


def _converted(path: Path, values: Floats, column: Mapped, time_ns: Ints | None, labels: Sequence[Words]) -> Floats:
    """In the unit of the table; counters of the same labels as increase by second, NaN where they begin anew."""
    if column.counter:
        if time_ns is None:
            raise DatasetError.at(path, f"{column.quantity}: counter without a time; expected time with a column")
        values = _rates(values, time_ns, labels)
    result = scaled(values, column.factor())
    return result if column.quantity in LIMITS else np.where(np.isinf(result), np.nan, result)


def scaled(values: Floats, factor: float) -> Floats:
    """Values by a factor; divided where that is exact, so that 90847434 bit/s are 90.847434 Mbit/s to the last bit."""
    inverse = round(1.0 / factor) if factor < 1.0 else 1
    return values / inverse if factor < 1.0 and abs(inverse * factor - 1.0) < 1e-12 else values * factor


def _rates(values: Floats, time_ns: Ints, labels: Sequence[Words]) -> Floats:
    """Increase by second since the row before of the same labels (N,)."""
    keys: Any = (time_ns, *(words.codes for words in labels))
    order = np.lexsort(keys)
    order = order[np.isfinite(values[order])]
    result = np.full(len(values), np.nan)
    same = np.ones(max(len(order) - 1, 0), np.bool_)
    for words in labels:
        same &= np.diff(words.codes[order]) == 0
    seconds, increase = np.diff(time_ns[order]) / 1e9, np.diff(values[order])
    good = same & (seconds > 0) & (increase >= 0)
    result[order[1:][good]] = increase[good] / seconds[good]
    return result


def _started(path: Path, raw: Raw, entry: FileMap) -> tuple[Ints | None, bool]:
    """Times (N,), and whether they are dates; numbers of seconds since 1970 are."""
    if raw.time_ns is None:
        return None, False
    if entry.start is not None:
        began = date_ns(entry.start, zone_of(entry.time_zone))
        if began is None:
            raise ConfigError(f"start = {entry.start!r}: expected a date such as 2026-11-24T10:00:00Z")
        if raw.absolute:
            raise DatasetError.at(path, f"start = {entry.start!r}: expected none, because its times are dates")
        return raw.time_ns + began, True
    return raw.time_ns, raw.absolute or is_since_1970(raw.time_ns)


def is_since_1970(time_ns: npt.NDArray[np.int64]) -> bool:
    """Whether times are dates and not counted from a start: they are after 1990."""
    return bool(len(time_ns) and time_ns.min() > 631_152_000_000_000_000)


def _slices(raw: Raw, entry: FileMap) -> Words:
    if entry.slice is None:
        return Words.all_of(entry.slice_name or "", raw.rows)
    words = raw.words[entry.slice]
    names = [entry.slices.get(name) or slice_name(name) for name in words.names]
    merged = {name: number for number, name in enumerate(dict.fromkeys(names))}
    codes = np.asarray([merged[name] for name in names] + [-1], np.int32)
    return Words(codes[words.codes], tuple(merged))


def stem_of(path: Path) -> str:
    """A file's name without its endings, as a word."""
    name = path.name
    for ending in COMPRESSED:
        name = name[: -len(ending)] if name.lower().endswith(ending) else name
    return printable(Path(name).stem) or "file"


def slice_name(text: str) -> str:
    """A text as the name of a slice: letters, digits, ``_.-``."""
    plain = "".join(letter if letter in _NAME_LETTERS else "-" for letter in text.strip())
    plain = plain.strip("-._")[:LONGEST_NAME]
    return plain or "slice"


def table_name(text: str) -> str:
    """A text as the name of a table's column."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in text.strip().lower())
    while "__" in plain:
        plain = plain.replace("__", "_")
    plain = plain.strip("_")[:LONGEST_NAME]
    return plain if plain[:1].isalpha() else f"column_{plain}".rstrip("_")


def _require_same_clock(rows: Sequence[Rows]) -> None:
    """Raises DatasetError where some times are dates and others are counted from a start."""
    dated = next((own for own in rows if own.time_ns is not None and own.absolute), None)
    other = next((own for own in rows if own.time_ns is not None and not own.absolute), None)
    if dated is not None and other is not None:
        raise DatasetError.at(
            other.path, f"times from a start, while those of {dated.path.name} are dates; expected start in its entry"
        )
