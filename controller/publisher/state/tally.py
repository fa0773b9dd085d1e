"""Counting over many ticks at once: reasons, stage times and packet delays, as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slicepilot.controller.contracts.charge import InCharge, who
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.record.ring import LATE, STAGES_NS, Records
from slicepilot.controller.telemetry.histogram import edges_ns
from slicepilot.controller.telemetry.layout import BUCKETS

STAGES = (*(name.removesuffix("_ns") for name in STAGES_NS), "total")
"""Timed parts of a tick; ``total`` is all but ``wakeup``, by how much the tick began late."""
REASONS = tuple(Reason)

Counts = npt.NDArray[np.int64]


def masks_of(records: Records) -> npt.NDArray[np.uint32]:
    """Reason masks (N, S + 1): of each slice, then of the node."""
    return np.column_stack([records["reasons"], records["node_reasons"]])


def reason_counts(masks: npt.NDArray[np.uint32]) -> Counts:
    """In how many of N ticks each reason was given, (S + 1, reasons), of masks (N, S + 1)."""
    counts = np.zeros((masks.shape[1], len(REASONS)), np.int64)
    given = int(np.bitwise_or.reduce(masks, axis=None)) if masks.size else 0
    for reason in REASONS:
        if given & reason.bit:
            counts[:, reason] = np.count_nonzero(masks & np.uint32(reason.bit), axis=0)
    return counts


def charge_counts(records: Records) -> Counts:
    """Ticks by who was in charge, (3,) in the order of `InCharge`."""
    charges = who(records["level"], records["flags"] & LATE != 0, masks_of(records))
    return np.bincount(charges, minlength=len(InCharge))


def stage_times_ns(records: Records) -> Counts:
    """Times of all `STAGES`, (N, 6)."""
    times = np.empty((len(records), len(STAGES)), np.int64)
    for column, name in enumerate(STAGES_NS):
        times[:, column] = records[name]
    times[:, -1] = times[:, 1:-1].sum(axis=1)
    return times


def stage_counts(times_ns: Counts) -> Counts:
    """Histograms of the stages, (6, BUCKETS), of times (N, 6), in the buckets of the delay histograms."""
    bucket = np.clip(np.searchsorted(edges_ns(), times_ns, side="right") - 1, 0, BUCKETS - 1)
    bucket += np.arange(len(STAGES)) * BUCKETS
    return np.bincount(bucket.ravel(), minlength=len(STAGES) * BUCKETS).reshape(len(STAGES), BUCKETS)


def quantiles_us(counts: Counts, levels: Sequence[float]) -> npt.NDArray[np.float64]:
    """Quantiles (N, levels) of histograms (N, BUCKETS), interpolated inside a bucket; NaN where nothing was counted."""
    below = np.zeros((len(counts), BUCKETS + 1), np.int64)
    np.cumsum(counts, axis=1, out=below[:, 1:])
    edges, row = edges_ns(), np.arange(len(counts))
    found = np.empty((len(counts), len(levels)))
    for column, level in enumerate(levels):
        target = level * below[:, -1]
        bucket = (below[:, 1:] >= target[:, None]).argmax(axis=1)
        here = below[row, bucket + 1] - below[row, bucket]
        inside = (target - below[row, bucket]) / np.maximum(here, 1)
        found[:, column] = (edges[bucket] + inside * (edges[bucket + 1] - edges[bucket])) / 1e3
    found[below[:, -1] == 0] = np.nan
    return found


class DelayCounter:
    """Packets by delay that only ever grow, whatever happens to the probe's own counts.

    The probe counts in 32 bits, which wrap, and from zero again when it is attached anew.

    Attributes:
        total: packets so far, int64 (S, BUCKETS), with those that the probe had counted at the first look.
    """

    def __init__(self, num_slices: int) -> None:
        self.total: Counts = np.zeros((num_slices, BUCKETS), np.int64)
        self._seen: Counts | None = None

    def update(self, counts: npt.NDArray[np.uint64]) -> Counts:
        """Packets since the last call, (S, BUCKETS). The first call adds what it is given to `total`, but nobody knows
        since when that was counted: it returns zeros."""
        now = counts.astype(np.int64)
        if self._seen is None:
            self._seen = now
            self.total += now
            return np.zeros_like(now)
        new = (now - self._seen) & 0xFFFFFFFF
        # Half the range in less than a second is no traffic: the probe has begun anew.
        afresh = (new >= 1 << 31).any(axis=1)
        new[afresh] = now[afresh]
        self._seen = now
        self.total += new
        return new
