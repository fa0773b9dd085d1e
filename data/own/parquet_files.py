"""Parquet files of other programs, and tables of `dataset import`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from slicepilot.configs.text import has_controls
from slicepilot.data.arrow import values_of
from slicepilot.data.csv.chunks import OnProgress
from slicepilot.data.faults import DatasetError, Faults, shown
from slicepilot.data.files import what_else

from .csv_files import encoded
from .map import PER_TIME, FileMap
from .rows import (
    MOST_COLUMNS,
    MOST_VALUES,
    MOST_WORDS,
    Floats,
    Ints,
    Raw,
    Words,
    checked,
    numbers_of,
    require_columns,
    times_of_numbers,
    times_of_texts,
)

compute: Any = pyarrow.compute  # its functions are made when it is loaded


def opened(path: Path) -> pq.ParquetFile:
    """A Parquet file; raises DatasetError for any other, or one of too many columns."""
    if problem := what_else(path):
        raise DatasetError.at(path, f"{problem}; expected a Parquet file")
    try:
        file = pq.ParquetFile(path.absolute(), page_checksum_verification=True)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise _damaged(path, error) from error
    columns = file.metadata.num_columns
    if columns > MOST_COLUMNS:
        raise DatasetError.at(path, f"{columns:,} columns; expected at most {MOST_COLUMNS:,}")
    return file


def _damaged(path: Path, error: Exception) -> DatasetError:
    return DatasetError.at(path, f"not a readable Parquet file ({shown(error)})")


def read_parquet(path: Path, entry: FileMap, faults: Faults, on_progress: OnProgress | None = None) -> Raw:
    """The columns that a map names.

    Raises:
        DatasetError: damaged, too large, a column that is not there, or of a type that is neither text nor number.
    """
    file = opened(path)
    numbers = [entry.value] if entry.value is not None else list(entry.columns)
    texts = entry.labels
    wanted = list(dict.fromkeys(name for name in (entry.time, *texts, *numbers) if name is not None))
    require_columns(path, wanted, file.schema_arrow.names)
    if file.metadata.num_rows * len(wanted) > MOST_VALUES:
        raise DatasetError.at(path, f"{file.metadata.num_rows:,} rows; expected a part of them")
    try:
        table = file.read(columns=wanted, use_threads=False)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise _damaged(path, error) from error
    if on_progress is not None:
        on_progress(1.0)
    lines = np.arange(1, table.num_rows + 1)
    if not len(lines):
        raise DatasetError.at(path, "no rows; expected at least one")
    good = np.ones(len(lines), np.bool_)
    times: Ints | None = None
    absolute = False
    if entry.time is not None:
        times, good, absolute = _times(table.column(entry.time), entry, lines, faults)
        times = times[good]
    words = {name: words_of(path, name, table.column(name)).take(good) for name in texts}
    values = {name: _values(path, name, table.column(name), entry, lines, faults)[good] for name in numbers}
    return Raw(int(good.sum()), times, absolute, words, values, lines[good])


def _times(column: Any, entry: FileMap, lines: Ints, faults: Faults) -> tuple[Ints, Any, bool]:
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        if pa.types.is_timestamp(kind) and kind.tz is None and entry.time_zone != "UTC":
            column = compute.assume_timezone(column, entry.time_zone, ambiguous="earliest", nonexistent="earliest")
        there = ~np.asarray(column.is_null().to_pylist(), np.bool_)
        ns = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False)
        stamps = values_of(compute.fill_null(ns.cast(pa.int64()), 0)) * 1_000
        faults.add_many("number", lines[~there], entry.time)
        return np.asarray(stamps, np.int64) // PER_TIME * PER_TIME, there, True
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        times, good = times_of_numbers(_floats(column), entry, lines, faults)
        return times, good, entry.time_unit == "text"
    times, good = times_of_texts(encoded(column.cast(pa.string())), entry, lines, faults)
    return times, good, True


def _floats(column: Any) -> Floats:
    return np.array(values_of(compute.fill_null(column.cast(pa.float64(), safe=False), float("nan"))), np.float64)


def words_of(path: Path, name: str, column: Any) -> Words:
    """A column as words; raises DatasetError for nested types, control characters, or too many words."""
    try:
        words = encoded(column.cast(pa.string()))
    except (pa.ArrowException, ValueError) as error:
        raise DatasetError.at(path, f"column {name!r}: {column.type}; expected texts or numbers") from error
    if len(words.names) > MOST_WORDS:
        raise DatasetError.at(path, f"column {name!r}: more than {MOST_WORDS:,} words; expected a few")
    if wrong := next((text for text in words.names if has_controls(text)), None):
        raise DatasetError.at(path, f"column {name!r}: {shown(wrong)!r}: control characters; expected printable text")
    return words


def _values(path: Path, name: str, column: Any, entry: FileMap, lines: Ints, faults: Faults) -> Floats:
    mapped = None if entry.is_long else entry.columns.get(name)
    quantity = "" if mapped is None else mapped.quantity
    kind = column.type
    if (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
    ):
        values = _floats(column)
    else:
        values = numbers_of(words_of(path, name, column), lines, name, entry, quantity, faults)
    return checked(values, lines, name, faults, quantity)
