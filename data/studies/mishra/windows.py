"""Forwarding delays by window of time and slice: how many packets, which rate, which delays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ....configs import ConfigError
from ...arrow import numbers, words
from ...csv.blocks import OnProgress
from ...faults import DatasetError, Faults
from ...tables.tally import BUCKETS, Floats, Ints, buckets_of, quantiles
from .checks import REORDERED_NS
from .tables import MAX_NAMES, NAME, ForwardingRows, checked_forwarding

SHORTEST_S = 1e-3
_MOST_WINDOWS = 1 << 38  # so that windows, slices and buckets have one number; 8 years of the shortest
LEVELS = {"delay_p50_us": 0.5, "delay_p95_us": 0.95, "delay_p99_us": 0.99}
WINDOWS = pa.schema(
    [
        ("start_ns", pa.int64()),
        ("time_s", pa.float64()),
        ("slice", NAME),
        ("packets", pa.int64()),
        ("rate_mbps", pa.float64()),
        ("delay_mean_us", pa.float64()),
        ("delay_min_us", pa.float64()),
        *((name, pa.float64()) for name in LEVELS),
        ("delay_max_us", pa.float64()),
    ]
)
"""One row for each window and slice that had packets: when the window begins by the file's clock and since that of the
first row, bits of packets that left in it over its length, and their delays (quantiles within 0.2%)."""


def windows(
    path: str | Path, window_s: float, faults: Faults, on_progress: OnProgress | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows of `WINDOWS` in order of time, then of the slices' first appearance.

    A packet counts in the window in which it left. Rows that are noted as ``clock`` count in none, since windows are
    handed out a second after their end. Only windows that are not handed out yet are held in memory, as histograms.

    Args:
        path: a forwarding file.
        window_s: length of a window in seconds; windows begin at its multiples.
        faults: where bad rows are noted.
        on_progress: told about the share of the file that has been read.

    Raises:
        ConfigError: a window shorter than `SHORTEST_S`.
        DatasetError: as `slicepilot.data.studies.mishra.tables.forwarding_batches`.
    """
    if not SHORTEST_S <= window_s <= 1e6:
        raise ConfigError(f"window_s = {window_s:g}: accepted: {SHORTEST_S:g} to 1e6 seconds")
    window_ns = round(window_s * 1e9)
    cells, first, latest_ns = _Cells.none(), None, 0
    names: tuple[str, ...] = ()
    for rows in checked_forwarding(path, faults, on_progress):
        sent_ns, names = rows.values("ts_tx_ns"), rows.names
        index = sent_ns // window_ns
        first = int(index[0]) if first is None else first
        latest_ns = max(latest_ns, int(sent_ns.max()))
        if latest_ns // window_ns - first > _MOST_WINDOWS:
            problem = f"ts_tx_ns = {latest_ns}: accepted: at most {_MOST_WINDOWS} windows after the first row"
            raise DatasetError.at(path, problem, rows.block.first_line)
        cells = cells.joined(_Cells.of(rows, index - first))
        done, cells = cells.split((latest_ns - REORDERED_NS) // window_ns - first)
        if len(done):
            yield _batch(done, first, window_ns, names)
    if first is not None and len(cells):
        yield _batch(cells, first, window_ns, names)


@dataclass(frozen=True)
class _Cells:
    """What is known of packets that left in one window, of one slice, with delays of one bucket; K of these.

    Attributes:
        counts: (3, K) keys, ascending, which are window, slice and bucket as one number; packets; bytes.
        delays: (3, K) their sum, the least and the greatest of them, in microseconds.
    """

    counts: Ints
    delays: Floats

    @classmethod
    def none(cls) -> _Cells:
        return cls(np.zeros((3, 0), np.int64), np.zeros((3, 0)))

    @classmethod
    def of(cls, rows: ForwardingRows, index: Ints) -> _Cells:
        """The cells of rows (N,) and their windows (N,)."""
        keep = ~rows.behind
        delay_us = rows.values("delay_us")[keep]
        keys = (index[keep] * MAX_NAMES + rows.slices[keep]) * BUCKETS + buckets_of(delay_us)
        counts = np.stack([keys, np.ones_like(keys), rows.values("pkt_len")[keep]])
        return cls(counts, np.stack([delay_us] * 3))._merged()

    def __len__(self) -> int:
        return self.counts.shape[1]

    def joined(self, others: _Cells) -> _Cells:
        """These and others."""
        counts = np.concatenate([self.counts, others.counts], axis=1)
        return _Cells(counts, np.concatenate([self.delays, others.delays], axis=1))._merged()

    def split(self, window: int) -> tuple[_Cells, _Cells]:
        """The cells before a window, and the rest."""
        at = int(np.searchsorted(self.counts[0], window * MAX_NAMES * BUCKETS))
        return _Cells(self.counts[:, :at], self.delays[:, :at]), _Cells(self.counts[:, at:], self.delays[:, at:])

    def summed(self, groups: Ints) -> tuple[Ints, Ints, Floats]:
        """Where each run of equal numbers begins in ascending ones (K,), G of them; and counts and delays of these
        (3, G), with the first of each run's keys."""
        starts = np.flatnonzero(np.diff(groups, prepend=groups[:1] - 1))
        counts = np.add.reduceat(self.counts, starts, axis=1)
        counts[0] = self.counts[0, starts]
        total, least, greatest = self.delays
        delays = [
            np.add.reduceat(total, starts), np.minimum.reduceat(least, starts), np.maximum.reduceat(greatest, starts),
        ]  # fmt: skip
        return starts, counts, np.stack(delays)

    def _merged(self) -> _Cells:
        """Sorted, with one cell for each key."""
        if not len(self):
            return self
        order = np.argsort(self.counts[0], kind="stable")
        ordered = _Cells(self.counts[:, order], self.delays[:, order])
        _, counts, delays = ordered.summed(ordered.counts[0])
        return _Cells(counts, delays)


def _batch(cells: _Cells, first: int, window_ns: int, names: tuple[str, ...]) -> pa.RecordBatch:
    """Rows of `WINDOWS`, one for each window and slice of some cells."""
    groups, buckets = np.divmod(cells.counts[0], BUCKETS)
    starts, (_, packets, sizes), (total, least, greatest) = cells.summed(groups)
    index, slices = np.divmod(groups[starts], MAX_NAMES)
    found = np.clip(quantiles(buckets, cells.counts[1], starts, tuple(LEVELS.values())).T, least, greatest)
    columns = [
        numbers((index + first) * window_ns),
        numbers(index * window_ns / 1e9),
        words(slices.astype(np.int32), [name.encode() for name in names]),
        numbers(packets),
        numbers(8e3 * sizes / window_ns),
        numbers(total / packets),
        *(numbers(column) for column in (least, *found, greatest)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=WINDOWS)
