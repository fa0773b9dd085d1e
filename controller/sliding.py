"""Rates over a time in which loads have a rate: a period of a few milliseconds holds one video frame or none."""

from __future__ import annotations

import numpy as np
from numba import njit

from ..env.telemetry import NODE_FIELDS, SLICE_FIELDS, Telemetry

WINDOW_S = 0.05  # three frames of 60 Hz video
_OFFERED, _CARRIED, _LOSS, _CPU_USE = (
    SLICE_FIELDS.index(name) for name in ("offered_mbps", "carried_mbps", "loss_ratio", "cpu_use_mcpu")
)
_MEANS = (_OFFERED, _CARRIED, _CPU_USE)
_TINY = np.float32(1e-6)


class SlidingRates:
    """Means over the last `WINDOW_S`, in whole periods, of what adds up: rates, CPU time, the node's figures.

    The simulator's loads are fluid, so its policies have never met a video that offers 50 Mbit/s in one period and
    nothing in the next: they take its limit away. Delays, throttling and waits stay those of the last period. With
    periods longer than two thirds of the window nothing changes.

    Args:
        num_slices: S.
        period_s: control period.
    """

    def __init__(self, num_slices: int, period_s: float) -> None:
        self.periods = max(1, round(WINDOW_S / period_s))
        self._past = np.zeros((self.periods, len(_MEANS), num_slices), np.float32)
        self._node = np.zeros((self.periods, len(NODE_FIELDS)), np.float32)
        self._seen = 0
        # Compiled, or taken from the cache, before the first tick.
        self.smooth(Telemetry.empty(num_slices))
        self.restart()

    def restart(self) -> None:
        """Forget what was."""
        self._seen = 0

    def smooth(self, telemetry: Telemetry) -> None:
        """Replace the last period's figures, of one lane, by means; in place."""
        if self.periods > 1:
            at, self._seen = self._seen % self.periods, self._seen + 1
            _smooth(telemetry.slices, telemetry.node, self._past, self._node, at, min(self._seen, self.periods))


@njit(cache=True, error_model="numpy")
def _smooth(slices: np.ndarray, node: np.ndarray, past: np.ndarray, past_node: np.ndarray, at: int, count: int) -> None:
    """One call instead of some twenty of NumPy's, which would take longer than reading the kernel's maps."""
    share = np.float32(1.0 / count)
    for s in range(slices.shape[1]):
        for row, field in enumerate(_MEANS):
            past[at, row, s] = slices[field, s, 0]
            total = np.float32(0.0)
            for n in range(count):
                total += past[n, row, s]
            slices[field, s, 0] = total * share
        lost = slices[_OFFERED, s, 0] - slices[_CARRIED, s, 0]
        slices[_LOSS, s, 0] = max(lost, np.float32(0.0)) / (slices[_OFFERED, s, 0] + _TINY)
    for row in range(node.shape[0]):
        past_node[at, row] = node[row, 0]
        total = np.float32(0.0)
        for n in range(count):
            total += past_node[n, row]
        node[row, 0] = total * share
