"""What agents see of short periods: figures over a time in which loads have a rate, and not a video frame or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import FloatArray, IntArray
from .backend import Context
from .compiled import kernel
from .telemetry import NODE_FIELDS, SLICE_FIELDS, Telemetry

WINDOW_S = 0.05  # three frames of 60 Hz video
_OFFERED, _CARRIED, _P99, _LOSS = (
    SLICE_FIELDS.index(name) for name in ("offered_mbps", "carried_mbps", "delay_p99_us", "loss_ratio")
)
_MEANS = tuple(i for i in range(len(SLICE_FIELDS)) if i not in (_P99, _LOSS))
_ZERO, _ONE, _TINY = np.float32(0.0), np.float32(1.0), np.float32(1e-6)

# What is kept of a lane's node and of each slice; in double precision sums of float32 neither drift nor leave a rest.
_NODE = np.dtype([("window", "i8"), ("seen", "i8"), ("sums", "f8", (len(NODE_FIELDS),))])
_SLICE = np.dtype([("sums", "f8", (len(_MEANS),)), ("longest_p99_us", "f4")], align=True)
_PAST_SLICE = np.dtype([("means", "f4", (len(_MEANS),)), ("p99_us", "f4")])


class SlidingView:
    """Telemetry over the last `WINDOW_S`, in whole periods: the longest p99 delay, the loss of the mean rates, and the
    plain mean of every other row.

    In periods of a few milliseconds a video offers 50 Mbit/s in one and nothing in the next, and its delay rises with
    each frame; a policy that saw them would move the knobs back and forth. Agents see the same means in the simulator,
    so that they learn with the lag of a mean; rewards and promises use the figures of the period itself. Periods longer
    than two thirds of the window are passed through.

    Args:
        context: of the run; lanes may differ in their periods.
    """

    def __init__(self, context: Context) -> None:
        num_slices, lanes = context.threads.shape
        windows = np.maximum(np.rint(WINDOW_S / context.period_s), 1).astype(np.int64)
        longest = int(windows.max())
        self.passes = longest == 1
        of_slices, of_nodes = np.zeros((num_slices, lanes), _SLICE), np.zeros(lanes, _NODE)
        of_nodes["window"] = windows
        past = np.zeros((longest, num_slices, lanes), _PAST_SLICE)
        past_nodes = np.zeros((longest, len(NODE_FIELDS), lanes), np.float32)
        self._slices = np.zeros((len(SLICE_FIELDS), num_slices, lanes), np.float32)
        self._node = np.zeros((len(NODE_FIELDS), lanes), np.float32)
        self._kept = of_slices, past, of_nodes, past_nodes, self._slices, self._node
        self._lanes = np.arange(lanes)
        # Compiled, or taken from the cache, before the first period.
        self.warm_up(Telemetry.empty(num_slices, lanes))

    def see(self, telemetry: Telemetry) -> Telemetry:
        """The measurement of one more period as agents see it; its arrays hold until the next call."""
        return self._see(telemetry, self._lanes)

    def restart(self, telemetry: Telemetry, lanes: IntArray) -> Telemetry:
        """As `see`, but only these lanes have a new period, the first of a run."""
        of_slices, past, of_nodes, past_nodes, *_ = self._kept
        of_slices[:, lanes], past[:, :, lanes], past_nodes[:, :, lanes] = (
            np.zeros((), _SLICE),
            np.zeros((), _PAST_SLICE),
            0,
        )
        of_nodes["seen"][lanes], of_nodes["sums"][lanes] = 0, 0
        return self._see(telemetry, lanes)

    def _see(self, telemetry: Telemetry, lanes: IntArray) -> Telemetry:
        if self.passes:
            return telemetry
        _over(telemetry.slices, telemetry.node, lanes, True, *self._kept)
        return Telemetry(self._slices, self._node, telemetry.age_s, telemetry.valid)

    def warm_up(self, telemetry: Telemetry) -> None:
        """Go through the motions of `see` without effect on what it will say."""
        if not self.passes:
            _over(telemetry.slices, telemetry.node, self._lanes, False, *self._kept)


@kernel
def _over(
    slices: FloatArray,
    node: FloatArray,
    lanes: IntArray,
    keep: bool,
    of_slices: npt.NDArray[Any],
    past: npt.NDArray[Any],
    of_nodes: npt.NDArray[Any],
    past_nodes: FloatArray,
    seen_slices: FloatArray,
    seen_node: FloatArray,
) -> None:
    """One call instead of some twenty of NumPy's, which would take longer than reading the kernel's maps.

    What is kept: of_slices `_SLICE` (S, L), past `_PAST_SLICE` (N, S, L), of_nodes `_NODE` (L,), past_nodes (N, 2, L).
    """
    for lane in lanes:
        of_node: Any = of_nodes[lane]
        window, seen, node_sums = of_node.window, of_node.seen, of_node.sums
        at, share = seen % window, 1.0 / min(seen + 1, window)
        for s in range(slices.shape[1]):
            sums, gone = of_slices[s, lane].sums, past[at, s, lane].means
            for field in range(len(slices)):
                seen_slices[field, s, lane] = slices[field, s, lane]
            for row, field in enumerate(_MEANS):
                total = sums[row] + slices[field, s, lane] - gone[row]
                seen_slices[field, s, lane] = total * share
                if keep:
                    sums[row], gone[row] = total, slices[field, s, lane]
        if window > 1:
            for s in range(slices.shape[1]):
                item, oldest = of_slices[s, lane], past[at, s, lane]
                new, longest = slices[_P99, s, lane], item.longest_p99_us
                if new < longest == oldest.p99_us:  # the longest leaves the window
                    longest = new
                    for other in range(window):
                        if other != at:
                            longest = max(longest, past[other, s, lane].p99_us)
                longest = max(longest, new)
                seen_slices[_P99, s, lane] = longest
                if keep:
                    oldest.p99_us, item.longest_p99_us = new, longest
                offered = seen_slices[_OFFERED, s, lane]
                lost = max(offered - seen_slices[_CARRIED, s, lane], _ZERO)
                seen_slices[_LOSS, s, lane] = min(lost / (offered + _TINY), _ONE)
        for row in range(len(node)):
            total = node_sums[row] + node[row, lane] - past_nodes[at, row, lane]
            seen_node[row, lane] = total * share
            if keep:
                node_sums[row], past_nodes[at, row, lane] = total, node[row, lane]
        if keep:
            of_node.seen = seen + 1
