"""What agents see of short periods: figures over a time in which loads have a rate, and not a video frame or none."""

from __future__ import annotations

import numpy as np
from numba import njit

from .backend import Context
from .slices import FloatArray
from .telemetry import NODE_FIELDS, SLICE_FIELDS, Telemetry

WINDOW_S = 0.05  # three frames of 60 Hz video
_OFFERED, _CARRIED, _P99, _LOSS = (
    SLICE_FIELDS.index(name) for name in ("offered_mbps", "carried_mbps", "delay_p99_us", "loss_ratio")
)
_MEANS = tuple(i for i in range(len(SLICE_FIELDS)) if i not in (_P99, _LOSS))
_ZERO, _ONE, _TINY = np.float32(0.0), np.float32(1.0), np.float32(1e-6)


class SlidingView:
    """Telemetry over the last `WINDOW_S`, in whole periods: means, the longest p99 delay, and the loss of the rates.

    A policy that sees a video offer 50 Mbit/s in one period and nothing in the next takes its CPU limit away, and one
    that sees its delay come and go with each frame moves weights to and fro. Agents are shown the same in the
    simulator, so that they learn how late a mean says what has changed; rewards and promises are judged by the period's
    own figures. With periods longer than two thirds of the window nothing changes.

    Args:
        context: of the run; lanes may differ in their periods.
    """

    def __init__(self, context: Context) -> None:
        shape = context.threads.shape
        num_slices, lanes = shape
        self._windows = np.maximum(np.rint(WINDOW_S / context.period_s), 1).astype(np.int64)
        longest = int(self._windows.max())
        self.passes = longest == 1
        self._past = np.zeros((longest, len(_MEANS), num_slices, lanes), np.float32)
        self._past_node = np.zeros((longest, len(NODE_FIELDS), lanes), np.float32)
        self._past_p99 = np.zeros((longest, num_slices, lanes), np.float32)
        self._longest_p99 = np.zeros((num_slices, lanes), np.float32)
        # In double precision sums of float32 neither drift nor leave a rest behind.
        self._sums = np.zeros((len(_MEANS), num_slices, lanes))
        self._node_sums = np.zeros((len(NODE_FIELDS), lanes))
        self._slices = np.zeros((len(SLICE_FIELDS), num_slices, lanes), np.float32)
        self._node = np.zeros((len(NODE_FIELDS), lanes), np.float32)
        self._kept = (
            *(self._windows, self._past, self._past_node, self._past_p99, self._longest_p99),
            *(self._sums, self._node_sums, self._slices, self._node),
        )
        self._seen = 0
        # Compiled, or taken from the cache, before the first period.
        self._source = Telemetry.empty(num_slices, lanes)
        self._view = self._of(self._source)
        self.warm_up(self._source)

    def see(self, telemetry: Telemetry) -> Telemetry:
        """The measurement of one more period as agents see it; its arrays hold until the next call."""
        if self.passes:
            return telemetry
        _over(telemetry.slices, telemetry.node, self._seen, True, *self._kept)
        self._seen += 1
        if telemetry is not self._source:  # a live node's is the same object each time
            self._source, self._view = telemetry, self._of(telemetry)
        return self._view

    def warm_up(self, telemetry: Telemetry) -> None:
        """Go through the motions of `see` without effect on what it will say."""
        if not self.passes:
            _over(telemetry.slices, telemetry.node, self._seen, False, *self._kept)

    def _of(self, telemetry: Telemetry) -> Telemetry:
        return Telemetry(self._slices, self._node, telemetry.age_s, telemetry.valid)


@njit(cache=True, error_model="numpy")
def _over(
    slices: FloatArray,
    node: FloatArray,
    seen: int,
    keep: bool,
    windows: np.ndarray,
    past: FloatArray,
    past_node: FloatArray,
    past_p99: FloatArray,
    longest_p99: FloatArray,
    sums: np.ndarray,
    node_sums: np.ndarray,
    seen_slices: FloatArray,
    seen_node: FloatArray,
) -> None:
    """One call instead of some twenty of NumPy's, which would take longer than reading the kernel's maps."""
    seen_slices[:] = slices
    for lane in range(len(windows)):
        window = windows[lane]
        at, share = seen % window, 1.0 / min(seen + 1, window)
        for row, field in enumerate(_MEANS):
            for s in range(slices.shape[1]):
                total = sums[row, s, lane] + slices[field, s, lane] - past[at, row, s, lane]
                seen_slices[field, s, lane] = total * share
                if keep:
                    sums[row, s, lane], past[at, row, s, lane] = total, slices[field, s, lane]
        if window > 1:
            for s in range(slices.shape[1]):
                new, gone, longest = slices[_P99, s, lane], past_p99[at, s, lane], longest_p99[s, lane]
                if new < longest == gone:  # the longest leaves the window
                    longest = new
                    for other in range(window):
                        if other != at:
                            longest = max(longest, past_p99[other, s, lane])
                longest = max(longest, new)
                seen_slices[_P99, s, lane] = longest
                if keep:
                    past_p99[at, s, lane], longest_p99[s, lane] = new, longest
                offered = seen_slices[_OFFERED, s, lane]
                lost = max(offered - seen_slices[_CARRIED, s, lane], _ZERO)
                seen_slices[_LOSS, s, lane] = min(lost / (offered + _TINY), _ONE)
        for row in range(len(node)):
            total = node_sums[row, lane] + node[row, lane] - past_node[at, row, lane]
            seen_node[row, lane] = total * share
            if keep:
                node_sums[row, lane], past_node[at, row, lane] = total, node[row, lane]
