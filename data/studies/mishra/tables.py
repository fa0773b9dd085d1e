"""Forwarding delays and PFCP latencies as Mishra and Pandey release them: typed, checked, with units in the names.

A. D. Mishra, M. Pandey, "Kernel-Level Per-Slice UPF Latency Measurement in Containerised 5G Core Networks",
arXiv:2605.28185, 2026, and docs/03_dataset_schema.md of its repository: ``o1_forwarding_*.csv`` holds a row for each
uplink packet that was seen both at N3 and behind the UPF, in the order in which they left it, with readings of the same
monotonic clock; ``o1_pfcp_*.csv`` a row for each PFCP round trip of the SMF. Columns may be in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slicepilot.data.arrow import codes_of, values_of
from slicepilot.data.csv.blocks import Block, oldest_first, read_blocks
from slicepilot.data.csv.chunks import OnProgress
from slicepilot.data.faults import DatasetError, Faults, require_rows

from .checks import Ints, Recent, Units, in_range, without

NAME = pa.dictionary(pa.int32(), pa.string())
FORWARDING = pa.schema(
    [
        ("slice", NAME),
        ("delay_us", pa.float64()),
        ("packet_bytes", pa.int32()),
        ("received_ns", pa.int64()),
        ("sent_ns", pa.int64()),
        ("interface", NAME),
    ]
)
"""Tidy rows of a forwarding file: delay from N3 to behind the UPF, length, and the clock at either end."""

PFCP = pa.schema([("message_type", NAME), ("latency_us", pa.float64())])
"""Tidy rows of a PFCP file. The study takes types from latency: above 200 us it is an establishment."""

# The files' own names, in the order of the schemas.
FORWARDING_COLUMNS: tuple[str, ...] = ("slice", "delay_us", "pkt_len", "ts_rx_ns", "ts_tx_ns", "netif_rx")
PFCP_COLUMNS: tuple[str, ...] = ("pfcp_type", "latency_us")
MAX_NAMES = 1024  # of slices, interfaces or types: more are something else


def forwarding_batches(
    path: str | Path, faults: Faults, on_progress: OnProgress | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a forwarding file as `FORWARDING`, in the file's order; where that is newest first, backwards.

    Beside what `slicepilot.data.csv.blocks.read_blocks` notes, rows are left out and noted for the first of these:
    ``range`` (negative delay or time, or a length that no packet has); ``unit`` (a delay that is the difference of the
    times in another unit); ``mismatch`` (a delay that is not that difference); ``duplicate`` (a row that is in
    the file before, among those that left within the second before). Kept and noted is ``clock``: a row that left more
    than a second before a row that precedes it in the file. Packets of different CPUs may swap within a
    second.

    Raises:
        DatasetError: as `read_blocks`; delays in another unit in more than some rows; more than `MAX_NAMES` slices.
    """
    path = Path(path)
    types = dict(zip(FORWARDING_COLUMNS, FORWARDING.types, strict=True))
    units, recent = Units(path, faults), Recent()
    slices, interfaces = Names(path, "slice"), Names(path, "netif_rx")
    good = 0
    blocks = read_blocks(path, types, faults, on_progress=on_progress)
    for given in oldest_first(path, blocks, lambda block: values_of(block.table.column("ts_tx_ns")), faults):
        units.count(len(given))
        block = units.agreeing(in_range(given, faults))
        if not len(block):
            continue
        columns = [
            *(values_of(block.table.column(name)) for name in ("ts_tx_ns", "ts_rx_ns", "pkt_len")),
            values_of(block.table.column("delay_us")).view(np.int64),
            slices.codes(block),
            interfaces.codes(block),
        ]
        behind = recent.behind(columns[0])
        again = recent.repeated(columns) & ~behind
        faults.add_many("clock", block.lines()[behind], "ts_tx_ns", columns[0][behind], left_out=False)
        block = without(block, again, faults, "duplicate")
        recent.keep(columns)
        good += len(block)
        if len(block):
            yield _batch(block, FORWARDING_COLUMNS, FORWARDING)
    units.end()
    require_rows(path, good, faults)


def pfcp_batches(path: str | Path, faults: Faults, on_progress: OnProgress | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a PFCP file as `PFCP`; negative latencies are left out and noted as ``range``.

    Nothing in such a file shows the unit of its latencies.

    Raises:
        DatasetError: as `slicepilot.data.csv.blocks.read_blocks`.
    """
    path, good = Path(path), 0
    types, kinds = Names(path, "pfcp_type"), dict(zip(PFCP_COLUMNS, PFCP.types, strict=True))
    for given in read_blocks(path, kinds, faults, on_progress=on_progress):
        block = without(given, values_of(given.table.column("latency_us")) < 0, faults, "range", "latency_us")
        good += len(block)
        if len(block):
            types.codes(block)
            yield _batch(block, PFCP_COLUMNS, PFCP)
    require_rows(path, good, faults)


class Names:
    """Numbers for the words of a column, the same in all blocks."""

    def __init__(self, path: Path, column: str) -> None:
        self._path, self._column = path, column
        self._numbers: dict[str, int] = {}

    def codes(self, block: Block) -> Ints:
        """The number of each row's word (N,); raises DatasetError beyond `MAX_NAMES`."""
        codes, words = codes_of(block.table.column(self._column))
        own = np.zeros(len(words), np.int64)
        for code in np.flatnonzero(np.bincount(codes, minlength=len(words))):
            own[code] = self._numbers.setdefault(words[code], len(self._numbers))
        if len(self._numbers) > MAX_NAMES:
            problem = f"{self._column}: more than {MAX_NAMES} different names; expected a few"
            raise DatasetError.at(self._path, problem, block.first_line)
        return own[codes]


def _batch(block: Block, columns: tuple[str, ...], schema: Any) -> Any:
    return pa.RecordBatch.from_arrays([block.table.column(name).chunk(0) for name in columns], schema=schema)
