"""Rates over a time in which loads have a rate: a period of a few milliseconds holds one video frame or none."""

from __future__ import annotations

import numpy as np

from ..env.telemetry import NODE_FIELDS, SLICE_FIELDS, Telemetry

WINDOW_S = 0.05  # three frames of 60 Hz video
_RATES = slice(0, 2)  # offered and carried
_LOSS, _CPU_USE = SLICE_FIELDS.index("loss_ratio"), SLICE_FIELDS.index("cpu_use_mcpu")
_TINY, _ZERO = np.float32(1e-6), np.float32(0.0)


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
        self._cpus = slice(2 * num_slices, 3 * num_slices)
        self._past = np.zeros((self.periods, 3 * num_slices + len(NODE_FIELDS)), np.float32)
        self._mean = np.zeros(self._past.shape[1], np.float32)
        self._seen = 0

    def restart(self) -> None:
        """Forget what was."""
        self._seen = 0

    def smooth(self, telemetry: Telemetry) -> None:
        """Replace the last period's figures, of one lane, by means; in place."""
        if self.periods == 1:
            return
        rates, cpus, node = telemetry.slices[_RATES], telemetry.slices[_CPU_USE], telemetry.node
        new, mean, at = self._past[self._seen % self.periods], self._mean, self._cpus
        new[: at.start], new[at], new[at.stop :] = rates.ravel(), cpus.ravel(), node.ravel()
        self._seen += 1
        count = min(self._seen, self.periods)
        np.add.reduce(self._past[:count], axis=0, out=mean)
        mean *= np.float32(1.0 / count)
        rates[:] = mean[: at.start].reshape(rates.shape)
        cpus[:] = mean[at].reshape(cpus.shape)
        node[:] = mean[at.stop :].reshape(node.shape)
        lost = telemetry.slices[_LOSS]
        np.subtract(rates[0], rates[1], out=lost)
        np.maximum(lost, _ZERO, out=lost)
        lost /= rates[0] + _TINY
