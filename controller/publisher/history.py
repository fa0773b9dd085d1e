"""The last two minutes of a run, second by second."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slicepilot.controller.contracts.charge import InCharge
from slicepilot.controller.record.ring import LATE, Records, charge_counts, masks_of
from slicepilot.controller.telemetry.histogram import counts_of, quantiles_us
from slicepilot.controller.telemetry.layout import BUCKETS
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS

from .counts import REASONS, STAGES, Counts, reason_counts, stage_times_ns

SECONDS = 120
_OFFERED, _CARRIED = SLICE_FIELDS.index("offered_mbps"), SLICE_FIELDS.index("carried_mbps")
_LOSS = SLICE_FIELDS.index("loss_ratio")
_P50, _P99 = SLICE_FIELDS.index("delay_p50_us"), SLICE_FIELDS.index("delay_p99_us")


class StatusHistory:
    """Sums of each of the last `SECONDS` seconds of CLOCK_MONOTONIC, kept in a circle.

    Attributes:
        newest: the second that is being filled; -1 before the first tick.
    """

    def __init__(self, num_slices: int) -> None:
        self.newest = -1
        self._counted = False
        s = num_slices
        self._second = np.full(SECONDS, -1, np.int64)
        self._ticks = np.zeros(SECONDS, np.int64)
        self._late = np.zeros(SECONDS, np.int64)
        self._charges = np.zeros((SECONDS, len(InCharge)), np.int64)
        self._node = np.zeros((SECONDS, len(NODE_FIELDS)))
        self._valid = np.zeros((SECONDS, s), np.int64)
        self._sums = np.zeros((SECONDS, len(SLICE_FIELDS), s))
        self._worst_us = np.zeros((SECONDS, s))
        self._reasons = np.zeros((SECONDS, s + 1, len(REASONS)), np.int64)
        self._stages = np.zeros((SECONDS, len(STAGES), BUCKETS), np.int32)
        self._packets: Counts = np.zeros((s, BUCKETS), np.int64)
        self._delay_us = np.full((SECONDS, 2, s), np.nan)

    def add(self, records: Records) -> None:
        seconds = records["monotonic_ns"] // 1_000_000_000
        for chunk in np.split(records, np.flatnonzero(np.diff(seconds)) + 1):
            if len(chunk):
                self._fold(self._row(int(chunk["monotonic_ns"][0]) // 1_000_000_000), chunk)

    def add_delays(self, packets: Counts) -> None:
        """Take in packets by delay (S, BUCKETS) that were counted up to the newest tick."""
        if self.newest < 0 or not packets.any():
            return
        self._counted = True
        self._packets += packets
        self._delay_us[self.newest % SECONDS] = quantiles_us(self._packets, (0.5, 0.99)).T

    def rows(self, seconds: int, whole: bool = False) -> npt.NDArray[np.int64]:
        """Rows of the newest seconds, oldest first, -1 for those without a tick; ``whole`` omits the second that is
        being filled."""
        end = self.newest + (0 if whole else 1)
        wanted = np.arange(end - seconds, end)
        row = wanted % SECONDS
        return np.where((wanted >= 0) & (self._second[row] == wanted), row, -1)

    def means(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Means of the slices' telemetry over all ticks of some rows, (fields, S); NaN where a slice was never valid.

        Loss is that of the summed rates, delays are as in `delays_us`.
        """
        rows = rows[rows >= 0]
        means = _means(self._sums[rows].sum(axis=0), self._valid[rows].sum(axis=0))
        if len(rows):
            means[[_P50, _P99]] = self.delays_us(rows)[-1]
        return means

    def series(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """`means` of each row, (rows, fields, S); NaN in rows that are -1."""
        figures = _means(self._sums[rows], self._valid[rows])
        figures[:, [_P50, _P99]] = self.delays_us(rows)
        figures[rows < 0] = np.nan
        return figures

    def delays_us(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """p50 and p99 of the packets of each row, (rows, 2, S); NaN where none left.

        The probe's counts come about once a second; a second without new counts has those of the second before. Where
        packets are not counted, it is the mean of the ticks' medians and the worst p99 of a tick.
        """
        if self._counted:
            delays = self._delay_us[rows]
        else:
            with np.errstate(invalid="ignore"):
                medians = self._sums[rows, _P50] / self._valid[rows]
            delays = np.stack([medians, self._worst_us[rows]], axis=1)
        for index in range(1, len(rows)):
            delays[index] = np.where(np.isnan(delays[index]), delays[index - 1], delays[index])
        delays[np.broadcast_to((self._sums[rows, _CARRIED] <= 0)[:, None], delays.shape)] = np.nan
        delays[rows < 0] = np.nan
        return delays

    def worst_us(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Greatest p99 of a single tick in each row, (rows, S), to compare with a delay bound."""
        return np.where((rows >= 0)[:, None], self._worst_us[rows], np.nan)

    def node(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        rows = rows[rows >= 0]
        with np.errstate(invalid="ignore"):
            means: npt.NDArray[np.float64] = self._node[rows].sum(axis=0) / self._ticks[rows].sum()
        return means

    def reasons(self, rows: npt.NDArray[np.int64]) -> Counts:
        """Ticks with each reason in some rows, (S + 1, reasons), the node's last."""
        counts: Counts = self._reasons[rows[rows >= 0]].sum(axis=0)
        return counts

    def stages_us(self, rows: npt.NDArray[np.int64], levels: tuple[float, ...]) -> npt.NDArray[np.float64]:
        """Quantiles of the stages over some rows, (6, levels)."""
        return quantiles_us(self._stages[rows[rows >= 0]].sum(axis=0, dtype=np.int64), levels)

    def ticks(self, rows: npt.NDArray[np.int64]) -> tuple[int, int]:
        rows = rows[rows >= 0]
        return int(self._ticks[rows].sum()), int(self._late[rows].sum())

    def charges(self, rows: npt.NDArray[np.int64]) -> dict[str, int]:
        counts = self._charges[rows[rows >= 0]].sum(axis=0).tolist()
        return {charge.label: counts[charge] for charge in InCharge}

    def _row(self, second: int) -> int:
        row = second % SECONDS
        if self._second[row] != second:
            self._second[row] = second
            for sums in (self._ticks, self._late, self._charges, self._node, self._valid, self._sums, self._worst_us):
                sums[row] = 0
            self._reasons[row], self._stages[row], self._delay_us[row] = 0, 0, np.nan
            self._packets[:] = 0
        self.newest = second
        return row

    def _fold(self, row: int, chunk: Records) -> None:
        slices, num_slices = chunk["slices"], self._valid.shape[1]
        valid = chunk["valid"][:, :num_slices].astype(bool)
        self._ticks[row] += len(chunk)
        self._late[row] += np.count_nonzero(chunk["flags"] & LATE)
        self._charges[row] += charge_counts(chunk)
        self._node[row] += chunk["node"].sum(axis=0)
        self._valid[row] += valid.sum(axis=0)
        seen = np.where(valid[:, None], slices, np.float32(0))
        self._sums[row] += seen.sum(axis=0)
        self._worst_us[row] = np.maximum(self._worst_us[row], seen[:, _P99].max(axis=0))
        self._reasons[row] += reason_counts(masks_of(chunk))
        self._stages[row] += counts_of(stage_times_ns(chunk)).astype(np.int32)


def _means(sums: npt.NDArray[np.float64], valid: Counts) -> npt.NDArray[np.float64]:
    """Means from sums (..., fields, S) over so many valid ticks (..., S)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        means: npt.NDArray[np.float64] = sums / valid[..., None, :]
        offered = means[..., _OFFERED, :]
        loss = np.clip(1 - means[..., _CARRIED, :] / offered, 0, 1)
    means[..., _LOSS, :] = np.where(offered == 0, 0.0, loss)
    return means
