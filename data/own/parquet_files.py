"""Parquet files of other programs, and tables of `dataset import`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slicepilot.data.csv.chunks import OnProgress
from slicepilot.data.faults import DatasetError, Faults, shown
from slicepilot.data.tables import tidy

from .columns import columns_of, put_together, wanted_columns
from .map import FileMap
from .rows import MOST_COLUMNS, MOST_VALUES, Raw


def opened(path: Path) -> pq.ParquetFile:
    """A Parquet file; raises DatasetError for any other, or one of too many columns."""
    file = tidy.opened(path, "a Parquet file")
    columns = file.metadata.num_columns
    if columns > MOST_COLUMNS:
        raise DatasetError.at(path, f"{columns:,} columns; expected at most {MOST_COLUMNS:,}")
    return file


def read_parquet(path: Path, entry: FileMap, faults: Faults, on_progress: OnProgress | None = None) -> Raw:
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
        raise DatasetError.at(path, f"not a readable Parquet file ({shown(error)})") from error
    if on_progress is not None:
        on_progress(1.0)
    if not table.num_rows:
        raise DatasetError.at(path, "no rows; expected at least one")
    return put_together(path, [columns_of(path, table, np.arange(1, table.num_rows + 1), entry, faults)])
