"""Tidy tables as CSV, for programs that do not read Parquet, and back. What Parquet says about itself CSV does not."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from slicepilot.data.csv.chunks import read_start
from slicepilot.data.faults import DatasetError
from slicepilot.data.files import sync_folder

from .tidy import Stream


def write_csv(stream: Stream, path: Path) -> int:
    """Write a table in one pass, all of it or nothing; returns its rows.

    Nothing stands where there is no value, and ``""`` for an empty text.

    Raises:
        DatasetError: what reading the table raises.
    """
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    rows = 0
    try:
        schema = pa.schema([field.with_type(_plain(field.type)) for field in stream.schema])
        with pacsv.CSVWriter(str(staging), schema) as writer:
            for batch in stream.batches:
                writer.write_batch(batch.cast(schema))
                rows += batch.num_rows
        staging.replace(path)
    except BaseException:
        with suppress(OSError):
            staging.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    return rows


def _plain(kind: Any) -> Any:
    """A type that CSV has: texts by dictionary become texts."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def header_of(path: Path) -> list[str]:
    """The names in a CSV file's first line, none where that is no CSV; raises DatasetError if it cannot be read."""
    line = read_start(path).partition(b"\n")[0].decode("utf-8-sig", "replace")
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def read_csv(path: Path, schema: Any, groups: tuple[str, ...]) -> Stream:
    """What `write_csv` wrote.

    Args:
        path: a CSV file with a header.
        schema: its columns, in its order.
        groups: see `slicepilot.data.tables.tidy.Stream`.

    Raises:
        DatasetError: as rows are read: something in the file is not as the schema says.
    """
    return Stream(schema, _batches(path, schema), groups)


def _batches(path: Path, schema: Any) -> Iterator[Any]:
    convert = pacsv.ConvertOptions(
        column_types=schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    try:
        with pacsv.open_csv(str(path), convert_options=convert) as reader:
            for batch in reader:
                yield pa.record_batch(batch.columns, schema)
    except (pa.ArrowException, OSError) as error:
        what = " ".join(str(error).split())
        raise DatasetError.at(path, f"{what}; accepted: a table that `dataset convert` wrote") from error
