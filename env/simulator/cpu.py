"""Who gets how much CPU: SMT capacity, softirq first, then CFS groups by weight."""

from __future__ import annotations

import numpy as np

from ..knobs import Knobs
from ..slices import FloatArray

SHARES_PER_CPU = 1024.0
BEST_EFFORT_SHARES = 2.0
NICE_STEP = 1.25
FILL_ROUNDS = 3


def group_weight(knobs: Knobs, request_mcpu: FloatArray) -> FloatArray:
    """CFS weight of each slice's cgroup, (S, L).

    A Kubernetes CPU request of n mCPU gives n * 1024 / 1000 shares, a pod without one (BestEffort) gets 2 (kubelet,
    ``pkg/kubelet/cm/helpers_linux.go``). One nice level of ``group`` scope is a factor of 1.25 (kernel,
    ``sched_prio_to_weight``); nice of ``process`` scope only ranks the tasks inside one group, so it changes nothing
    between slices.
    """
    weight = np.maximum(request_mcpu * (SHARES_PER_CPU / 1000.0), BEST_EFFORT_SHARES)
    if knobs.nice_scope == "group":
        weight = weight * np.exp(knobs.nice * np.float32(-np.log(NICE_STEP)))
    return np.asarray(weight, np.float32)


class WaterFill:
    """Divide capacity among demands by weight: each gets min(demand, level * weight), work-conserving.

    Exact after as many rounds as there are distinct levels of saturation; `FILL_ROUNDS` leave an error only when one
    slice's excess cascades through several others, and never hand out more than there is. Buffers are kept between calls.
    The leading axis holds alternative weightings that are filled side by side.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._level = np.empty((shape[0], 1, shape[2]), np.float32)
        self._sum = np.empty_like(self._level)
        self._step = np.empty(shape, np.float32)
        self._open = np.empty(shape, np.bool_)
        self.share = np.empty(shape, np.float32)

    def fill(self, capacity: FloatArray, demand: FloatArray, weight: FloatArray, weight_sum: FloatArray) -> FloatArray:
        """Shares (W, S, L) of ``capacity`` (L,) for ``demand`` (S, L) by ``weight`` (W, S, L), ``weight_sum`` (W, 1, L)."""
        level, total, step, share = self._level, self._sum, self._step, self.share
        np.divide(capacity, weight_sum, out=level)
        np.multiply(weight, level, out=share)
        np.minimum(share, demand, out=share)
        for _ in range(FILL_ROUNDS - 1):
            np.less(share, demand, out=self._open)
            np.multiply(weight, self._open, out=step)
            np.add.reduce(step, axis=1, keepdims=True, out=total)
            np.maximum(total, 1e-9, out=total)
            np.add.reduce(share, axis=1, keepdims=True, out=level)
            np.subtract(capacity, level, out=level)
            np.divide(level, total, out=level)
            np.multiply(step, level, out=step)
            np.add(share, step, out=share)
            np.minimum(share, demand, out=share)
        return share
