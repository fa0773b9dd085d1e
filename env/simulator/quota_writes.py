"""Delay of changes of a CPU limit: writes of a CFS quota are rationed where control periods are short."""

from __future__ import annotations

import numpy as np

from slicepilot.env.arrays import FloatArray, IntArray
from slicepilot.env.compiled import njit
from slicepilot.env.knobs import (
    CPU_LIMIT,
    MIN_QUOTA_US,
    QUOTA_DEAD_BAND_RATIO,
    QUOTA_PERIODS_PER_WRITE,
    QUOTA_WRITE_STOCK,
    Knobs,
)

from . import kernels
from .hardware import UNLIMITED

_ONE, _FULL = np.float32(1.0), np.float32(QUOTA_WRITE_STOCK)
_DEAD_BAND = np.float32(QUOTA_DEAD_BAND_RATIO)


class QuotaWrites:
    """Holds limits back as `slicepilot.controller.actuators.quota.CpuQuota` does on a live node, and for its reason.

    Args:
        period_s, cfs_period_s: control period and CFS period (L,) of the lanes.
        num_slices: S.
    """

    def __init__(self, period_s: FloatArray, cfs_period_s: FloatArray, num_slices: int) -> None:
        self._gain = (period_s / (cfs_period_s * np.float32(QUOTA_PERIODS_PER_WRITE))).astype(np.float32)
        self._least_mcpu = (1e-3 * MIN_QUOTA_US / cfs_period_s).astype(np.float32)
        self._cfs_period_s = cfs_period_s
        shape = (num_slices, len(period_s))
        self._held = np.full(shape, np.inf, np.float32)
        self._stock = np.full(shape, _FULL, np.float32)
        # With a write in every period no change has to wait.
        self.passes = bool((self._gain >= _ONE).all())

    def adopt(self, part: QuotaWrites, lanes: IntArray) -> None:
        """Take over what ``part`` holds as the lanes of these numbers."""
        self._held[:, lanes], self._stock[:, lanes] = part._held, part._stock

    def hold(self, knobs: Knobs, state: FloatArray) -> Knobs:
        """The knobs that hold after a request for ``knobs``; the same object where no change is held back.

        To be called once a control period. A write refills the group's budget in the engine's ``state``.
        """
        if self.passes:
            return knobs
        budget = state[kernels.CFS_BUDGET_S]
        same = _write(
            knobs.cpu_limit_mcpu, self._gain, self._least_mcpu, self._cfs_period_s, self._held, self._stock, budget
        )
        if same:
            return knobs
        values = knobs.values.copy()
        values[CPU_LIMIT] = self._held
        return Knobs(values, knobs.nice_scope)


@njit(cache=True, error_model="numpy")
def _write(
    asked_mcpu: FloatArray,
    gain: FloatArray,
    least_mcpu: FloatArray,
    cfs_period_s: FloatArray,
    held: FloatArray,
    stock: FloatArray,
    budget_s: FloatArray,
) -> bool:
    """Move ``held`` (S, L) towards the requested limits, as far as the stock allows; True where all of them hold."""
    same = True
    for s in range(len(held)):
        for lane in range(held.shape[1]):
            if gain[lane] >= _ONE:
                held[s, lane] = asked_mcpu[s, lane]
                continue
            stock[s, lane] = min(stock[s, lane] + gain[lane], _FULL)
            wanted, holds = max(asked_mcpu[s, lane], least_mcpu[lane]), held[s, lane]
            if wanted != holds:
                if np.isfinite(wanted) and np.isfinite(holds):
                    near = abs(wanted - holds) <= _DEAD_BAND * holds
                    allowed = stock[s, lane] >= (_FULL if near else _ONE)
                    stock[s, lane] -= _ONE if allowed else np.float32(0.0)
                else:
                    allowed = True
                if allowed:
                    held[s, lane] = wanted
                    budget_s[s, lane] = min(kernels.MILLI * wanted, UNLIMITED) * cfs_period_s[lane]
            same &= held[s, lane] == asked_mcpu[s, lane]
    return same
