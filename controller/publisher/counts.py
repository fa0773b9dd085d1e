"""Counting over many ticks at once: reasons, stage times and packet delays, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.controller.contracts.charge import InCharge
from slicepilot.controller.contracts.modes import Mode
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.record.ring import APPLY_ERROR, LATE, STAGES_NS, UNUSABLE, Records, charge_counts, masks_of
from slicepilot.controller.telemetry.histogram import counts_of
from slicepilot.controller.telemetry.layout import BUCKETS
from slicepilot.env.promises import AVERAGING_WINDOW_S, RATE_TOLERANCE
from slicepilot.env.telemetry import SLICE_FIELDS

STAGES = (*(name.removesuffix("_ns") for name in STAGES_NS), "total")
"""Timed parts of a tick; ``total`` is all but ``wakeup``, by how much the tick began late."""
REASONS = tuple(Reason)

Counts = npt.NDArray[np.int64]


def reason_counts(masks: npt.NDArray[np.uint32]) -> Counts:
    """Number of ticks with each reason, (S + 1, reasons), from the masks (N, S + 1) of N ticks."""
    counts = np.zeros((masks.shape[1], len(REASONS)), np.int64)
    given = int(np.bitwise_or.reduce(masks, axis=None)) if masks.size else 0
    for reason in REASONS:
        if given & reason.bit:
            counts[:, reason] = np.count_nonzero(masks & np.uint32(reason.bit), axis=0)
    return counts


def stage_times_ns(records: Records) -> Counts:
    """Times of all `STAGES`, (N, 6)."""
    times = np.empty((len(records), len(STAGES)), np.int64)
    for column, name in enumerate(STAGES_NS):
        times[:, column] = records[name]
    times[:, -1] = times[:, 1:-1].sum(axis=1)
    return times


class DelayCounter:
    """Packets by delay that never decrease.

    The probe's counts have 32 bits, which wrap, and begin at zero when it is attached again.

    Attributes:
        total: packets so far, int64 (S, BUCKETS), including those before the first update.
    """

    def __init__(self, num_slices: int) -> None:
        self.total: Counts = np.zeros((num_slices, BUCKETS), np.int64)
        self._seen: Counts | None = None

    def update(self, counts: npt.NDArray[np.uint64]) -> Counts:
        """Packets since the last call, (S, BUCKETS). The first call adds its counts to `total` and returns zeros, since
        it is unknown when they began."""
        now = counts.astype(np.int64)
        if self._seen is None:
            self._seen = now
            self.total += now
            return np.zeros_like(now)
        new = (now - self._seen) & 0xFFFFFFFF
        # Half the range in less than a second is impossible: the probe was attached again.
        afresh = (new >= 1 << 31).any(axis=1)
        new[afresh] = now[afresh]
        self._seen = now
        self.total += new
        return new


OUTCOMES = ("ok", "late", "unusable", "failed")
PROMISES = ("delay", "rate")
BYTES_PER_MBIT = 1e6 / 8
_DEFAULT_PERIOD_S = 0.01
_FIELD = {name: index for index, name in enumerate(SLICE_FIELDS)}


class Totals:
    """Sums that only grow; `add` takes each tick once, in order.

    Attributes:
        decisions: ticks by mode and outcome, (modes, outcomes): applied or recorded in time, late, without a usable
            decision, not applied in full.
        charges: ticks by what was in charge, in the order of `InCharge`, (4,).
        reasons: ticks with each reason, (S + 1, reasons), the node's last.
        stages: times of each stage, (6, BUCKETS); stage_s: their sums, (6,).
        offered_bytes, carried_bytes, cpu_s: rates integrated over the ticks' windows, (S,).
        broken_s: time with a promise broken, (2, S) in the order of `PROMISES`, as in `slicepilot.env.promises`.
    """

    def __init__(self, num_slices: int) -> None:
        self.decisions: Counts = np.zeros((len(Mode), len(OUTCOMES)), np.int64)
        self.charges: Counts = np.zeros(len(InCharge), np.int64)
        self.reasons: Counts = np.zeros((num_slices + 1, len(REASONS)), np.int64)
        self.stages: Counts = np.zeros((len(STAGES), BUCKETS), np.int64)
        self.stage_s = np.zeros(len(STAGES))
        self.offered_bytes = np.zeros(num_slices)
        self.carried_bytes = np.zeros(num_slices)
        self.cpu_s = np.zeros(num_slices)
        self.broken_s = np.zeros((len(PROMISES), num_slices))
        self._before: Records | None = None
        self._rates = np.zeros((0, 2, num_slices))

    @property
    def ticks(self) -> int:
        return int(self.decisions.sum())

    def add(self, records: Records, description: dict[str, Any]) -> None:
        """Take in ticks, oldest first, and the run's description at their time."""
        if not len(records):
            return
        flags = records["flags"]
        outcome = np.select([(flags & flag) != 0 for flag in (UNUSABLE, LATE, APPLY_ERROR)], [2, 1, 3], default=0)
        index = records["mode"].astype(np.int64) * len(OUTCOMES) + outcome
        self.decisions += np.bincount(index, minlength=self.decisions.size).reshape(self.decisions.shape)
        times_ns = stage_times_ns(records)
        self.stages += counts_of(times_ns)
        self.stage_s += times_ns.sum(axis=0) / 1e9
        self.charges += charge_counts(records)
        self.reasons += reason_counts(masks_of(records))
        period_s = float(description.get("period_s", _DEFAULT_PERIOD_S))
        window_s = self._windows_s(records, period_s)
        # A measurement that is no number must not spoil the sums for ever.
        figures = np.nan_to_num(records["slices"].astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        offered, carried = figures[:, _FIELD["offered_mbps"]], figures[:, _FIELD["carried_mbps"]]
        self.offered_bytes += window_s @ offered * BYTES_PER_MBIT
        self.carried_bytes += window_s @ carried * BYTES_PER_MBIT
        self.cpu_s += window_s @ figures[:, _FIELD["cpu_use_mcpu"]] / 1e3
        slices = description.get("slice_set", {}).get("slices", [])
        if len(slices) == figures.shape[2]:
            promised = np.array([[s["sla"]["committed_mbps"], 1e3 * s["sla"]["delay_bound_ms"]] for s in slices]).T
            valid = records["valid"][:, : figures.shape[2]].astype(bool)
            late = figures[:, _FIELD["delay_p99_us"]] > promised[1]
            short = self._short(np.stack([offered, carried], axis=1), promised[0], period_s)
            self.broken_s += np.stack([window_s @ (late & valid), window_s @ (short & valid)])

    def _windows_s(self, records: Records, period_s: float) -> npt.NDArray[np.float64]:
        """How long each tick measured, (N,): since the tick before it, or a period where that was not seen."""
        first = records[:1] if self._before is None else self._before
        known = np.concatenate([first, records])
        window_s = np.diff(known["monotonic_ns"]) / 1e9
        window_s[np.diff(known["sequence"].astype(np.int64)) != 1] = period_s
        self._before = records[-1:]
        return window_s

    def _short(
        self, rates: npt.NDArray[np.float64], committed_mbps: npt.NDArray[np.float64], period_s: float
    ) -> npt.NDArray[np.bool_]:
        """Ticks (N, S) that carried less than promised, as a mean over the averaging window."""
        periods = max(1, round(AVERAGING_WINDOW_S / period_s))
        known = np.concatenate([self._rates, rates])
        summed = np.concatenate([np.zeros_like(known[:1]), np.cumsum(known, axis=0)])
        last = np.arange(len(known) - len(rates), len(known)) + 1
        first = np.maximum(last - periods, 0)
        offered, carried = ((summed[last] - summed[first]) / (last - first)[:, None, None]).transpose(1, 0, 2)
        self._rates = known[-(periods - 1) :] if periods > 1 else known[:0]
        return carried < float(RATE_TOLERANCE) * np.minimum(offered, committed_mbps) - 1e-9
