"""Columns of CSV and Parquet that a map names: times, words and numbers; reading Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from slicepilot.configs.text import has_controls
from slicepilot.data.arrow import values_of
from slicepilot.data.faults import DatasetError, Faults, shown
from slicepilot.data.tables import tidy

from .map import PER_TIME, FileMap
from .rows import (
    LIMITS,
    MOST_COLUMNS,
    MOST_VALUES,
    MOST_WORDS,
    NOTHING,
    Floats,
    Ints,
    Raw,
    Words,
    checked,
    numbers_of,
    require_columns,
    times_of_numbers,
    times_of_texts,
    zone_of,
)

compute: Any = pyarrow.compute  # its functions are made when it is loaded


def opened(path: Path) -> pq.ParquetFile:
    """A Parquet file; raises DatasetError for any other, or one of too many columns."""
    file = tidy.opened(path, "a Parquet file")
    columns = file.metadata.num_columns
    if columns > MOST_COLUMNS:
        raise DatasetError.at(path, f"{columns:,} columns; expected at most {MOST_COLUMNS:,}")
    return file


def read_parquet(path: Path, entry: FileMap, faults: Faults) -> Raw:
    """The columns that a map names.

    Raises:
        DatasetError: damaged, too large, a column that is not there, or of a type that is neither text nor number.
    """
    file = opened(path)
    wanted = wanted_columns(path, entry, file.schema_arrow.names)
    if file.metadata.num_rows * len(wanted) > MOST_VALUES:
        raise DatasetError.at(path, f"{file.metadata.num_rows:,} rows; expected a part of them")
    try:
        table = file.read(columns=wanted, use_threads=False)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise tidy.damaged(path, error, "a Parquet file") from error
    if not table.num_rows:
        raise DatasetError.at(path, "no rows; expected at least one")
    return put_together(path, [columns_of(path, table, np.arange(1, table.num_rows + 1), entry, faults)])


def wanted_columns(path: Path, entry: FileMap, there: Sequence[str]) -> list[str]:
    """The columns that a map names; raises DatasetError for a column that a file lacks."""
    names = (entry.time, *entry.labels, *(entry.columns if entry.value is None else (entry.value,)))
    wanted = list(dict.fromkeys(name for name in names if name is not None))
    require_columns(path, wanted, there)
    return wanted


def columns_of(path: Path, table: Any, lines: Ints, entry: FileMap, faults: Faults) -> Raw:
    """The columns of an Arrow table that a map names, with the line of each row (N,); rows without a time are left out.

    Raises:
        DatasetError: a column that is neither text nor number, or control characters.
    """
    good = np.ones(len(lines), np.bool_)
    times, absolute = None, False
    if entry.time is not None:
        times, good, absolute = _times(path, table.column(entry.time), entry, lines, faults)
        times = times[good]
    words = {name: words_of(path, name, table.column(name)) for name in entry.labels}
    if entry.quantity is not None and entry.value is not None:
        values = {
            entry.value: _long_values(path, table.column(entry.value), words[entry.quantity], entry, lines, faults)
        }
    else:
        values = {
            name: _values(path, name, table.column(name), own.quantity, entry, lines, faults)
            for name, own in entry.columns.items()
        }
    return Raw(
        int(good.sum()),
        times,
        absolute,
        {name: column.take(good) for name, column in words.items()},
        {name: column[good] for name, column in values.items()},
        lines[good],
    )


def put_together(path: Path, parts: Sequence[Raw]) -> Raw:
    """Parts of a file below each other; raises DatasetError for a column of too many words."""
    first = parts[0]
    words = {name: Words.joined([part.words[name] for part in parts]) for name in first.words}
    for name, column in words.items():
        if len(column.names) > MOST_WORDS:
            raise DatasetError.at(path, f"column {name!r}: more than {MOST_WORDS:,} words; expected a few")
    values = {name: np.concatenate([part.values[name] for part in parts]) for name in first.values}
    times = [part.time_ns for part in parts if part.time_ns is not None]
    lines = np.concatenate([part.lines for part in parts])
    return Raw(len(lines), np.concatenate(times) if times else None, first.absolute, words, values, lines)


def words_of(path: Path, name: str, column: Any) -> Words:
    """A column as words; raises DatasetError for nested types, or control characters."""
    words = encoded(_texts(path, name, column))
    if wrong := next((text for text in words.names if has_controls(text)), None):
        raise DatasetError.at(path, f"column {name!r}: {shown(wrong)!r}: control characters; expected printable text")
    return words


def encoded(column: Any) -> Words:
    """A column of texts as words; empty texts are none."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    coded = compute.utf8_trim_whitespace(array).dictionary_encode()
    names = coded.dictionary.to_pylist()
    codes = np.array(values_of(compute.fill_null(coded.indices, -1)), np.int32)
    empty = next((code for code, name in enumerate(names) if not name), None)
    if empty is not None:
        codes[codes == empty] = -1
    return Words(codes, tuple(name or "" for name in names))


def _times(path: Path, column: Any, entry: FileMap, lines: Ints, faults: Faults) -> tuple[Ints, Any, bool]:
    """Nanoseconds (N,), which of them are times, and whether they are dates."""
    kind, is_date = column.type, entry.time_unit == "text"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        if pa.types.is_timestamp(kind) and kind.tz is None and entry.time_zone != "UTC":
            zone_of(entry.time_zone)  # which refuses unknown names
            column = compute.assume_timezone(column, entry.time_zone, ambiguous="earliest", nonexistent="earliest")
        there = ~np.asarray(column.is_null().to_pylist(), np.bool_)
        ns = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False)
        stamps = values_of(compute.fill_null(ns.cast(pa.int64()), 0)) * 1_000
        faults.add_many("number", lines[~there], entry.time)
        return np.asarray(stamps, np.int64) // PER_TIME * PER_TIME, there, True
    name = entry.time or ""
    if is_date and not is_number(kind):
        return *times_of_texts(encoded(_texts(path, name, column)), entry, lines, faults), True
    values = _values(path, name, column, "", entry, lines, faults)
    return *times_of_numbers(values, entry, lines, faults), is_date


def _values(path: Path, name: str, column: Any, quantity: str, entry: FileMap, lines: Ints, faults: Faults) -> Floats:
    """Numbers (N,), NaN for none."""
    if is_number(column.type):
        values = _floats(column)
    else:
        texts = _texts(path, name, column)
        quick = None if quantity in LIMITS else _at_once(texts, entry.decimal)
        values = numbers_of(encoded(texts), lines, name, entry, quantity, faults) if quick is None else quick
    return checked(values, lines, name, faults, quantity)


def _long_values(path: Path, column: Any, words: Words, entry: FileMap, lines: Ints, faults: Faults) -> Floats:
    """Numbers (N,) of a table with a row for each value, by the quantity of each row's word."""
    result = np.full(len(lines), np.nan)
    rest = np.ones(len(lines), np.bool_)
    for code, name in enumerate(words.names):
        if (own := entry.columns.get(name)) is None:
            continue
        here = words.codes == code
        result[here] = _values(path, name, column.filter(pa.array(here)), own.quantity, entry, lines[here], faults)
        rest &= ~here
    result[rest] = _values(path, entry.value or "", column.filter(pa.array(rest)), "", entry, lines[rest], faults)
    return result


def _texts(path: Path, name: str, column: Any) -> Any:
    try:
        return column.cast(pa.string())
    except (pa.ArrowException, ValueError) as error:
        raise DatasetError.at(path, f"column {name!r}: {column.type}; expected texts or numbers") from error


def _at_once(texts: Any, decimal: str) -> Floats | None:
    """Numbers (N,) of texts, NaN for none; None where any is no plain number."""
    if decimal != ".":
        return None
    trimmed = compute.utf8_trim_whitespace(texts)
    nothing = compute.is_in(compute.utf8_lower(trimmed), value_set=pa.array(sorted(NOTHING)))
    try:
        return _floats(compute.if_else(nothing, None, trimmed))
    except pa.ArrowInvalid:
        return None


def _floats(column: Any) -> Floats:
    return np.array(values_of(compute.fill_null(column.cast(pa.float64(), safe=False), float("nan"))), np.float64)


def is_number(kind: Any) -> bool:
    """Whether an Arrow type is one of numbers or booleans."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind))
