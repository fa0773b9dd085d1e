"""Tidy tables as CSV, for programs that do not read Parquet. CSV has no description of itself."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from slicepilot.data.files import sync_folder

from .tidy import Stream


def write_csv(stream: Stream, path: Path) -> int:
    """Write a table in one pass, all of it or nothing; returns its rows.

    A missing value is empty, and an empty text is ``""``.

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
