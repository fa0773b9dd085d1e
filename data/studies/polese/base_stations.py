"""What a base station carried, as Polese et al. release it: four times a second, of all its slices together.

M. Polese, L. Bonati, S. D'Oro, S. Basagni, T. Melodia, "ColoRAN: Design and Testing of Open RAN Intelligence on
Large-scale Experimental Platforms", arXiv:2112.09559, 2021. ``bsN.csv`` has the columns of srsLTE's metrics: time since
1970 in milliseconds, attached UEs, rates in bit/s.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...arrow import numbers, values_of
from ...csv.blocks import Block, read_blocks
from ...csv.chunks import OnProgress
from ...faults import Faults, require_rows
from ...tables.tidy import Stream

COLUMNS = {"time": pa.int64(), "nof_ue": pa.int32(), "dl_brate": pa.float64(), "ul_brate": pa.float64()}
SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("ms")),
        ("attached_ues", pa.int32()),
        ("downlink_mbps", pa.float64()),
        ("uplink_mbps", pa.float64()),
    ]
)


def read_base_station(path: Path, faults: Faults, on_progress: OnProgress | None = None) -> Stream:
    """The rows of a base station's file as `SCHEMA`, in the file's order.

    Args:
        path: a CSV file with `COLUMNS`.
        faults: those of `slicepilot.data.csv.blocks.read_blocks`, and ``range`` (negative figures), ``clock`` (rows
            before the one above them; kept).
        on_progress: told about the share of the file that has been read.

    Raises:
        DatasetError: as rows are read: as `read_blocks`, and no row that can be used.
    """
    return Stream(SCHEMA, _batches(path, faults, on_progress))


def _batches(path: Path, faults: Faults, on_progress: OnProgress | None) -> Iterator[Any]:
    good, latest = 0, 0
    for given in read_blocks(path, COLUMNS, faults, on_progress=on_progress):
        block = _in_range(given, faults)
        if not len(block):
            continue
        time, ues, down, up = (values_of(block.table.column(name)) for name in COLUMNS)
        back = np.diff(time, prepend=latest) < 0
        faults.add_many("clock", block.lines()[back], "time", time[back], left_out=False)
        good, latest = good + len(block), int(time[-1])
        columns = [numbers(time, pa.timestamp("ms")), numbers(ues), numbers(1e-6 * down), numbers(1e-6 * up)]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    require_rows(path, good, faults)


def _in_range(block: Block, faults: Faults) -> Block:
    """The rows without negative figures."""
    for name in COLUMNS:
        values = values_of(block.table.column(name))
        wrong = values < 0
        if wrong.any():
            faults.add_many("range", block.lines()[wrong], name, values[wrong])
            block = block.where(~wrong)
    return block
