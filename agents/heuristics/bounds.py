"""Keeping knobs inside what the slices declare."""

from __future__ import annotations

import numpy as np

from ...env.backend import Context
from ...env.knobs import Knobs
from ...env.slices import FloatArray, SliceSet


def within_bounds(knobs: Knobs, slices: SliceSet) -> Knobs:
    """The nearest knobs that the slices' `KnobBounds` allow; "none" (inf, or an egress of 0) stays."""

    def clip(name: str, value: FloatArray, free: np.ndarray | bool) -> FloatArray:
        low, high = slices.bound(name, 0), slices.bound(name, 1)
        return np.ascontiguousarray(np.where(free, value, np.clip(value, low, high)), np.float32)

    limit, egress = knobs.cpu_limit_mcpu, knobs.egress_mbps
    return Knobs(
        clip("cpu_limit_mcpu", limit, np.isinf(limit)),
        clip("nice", knobs.nice, False),
        clip("egress_mbps", egress, np.isinf(egress) | (egress == 0)),
        knobs.nice_scope,
    )


def most_cpu_mcpu(slices: SliceSet, context: Context) -> FloatArray:
    """The CPU that a limit can usefully grant: all that the UPF's threads can use, inside the bounds, (S, L)."""
    usable = np.float32(1e3) * np.minimum(context.threads, context.logical_cpus)
    return np.clip(usable, slices.bound("cpu_limit_mcpu", 0), slices.bound("cpu_limit_mcpu", 1))


def smoothing(period_s: FloatArray, time_constant_s: float) -> FloatArray:
    """Weight of the newest of samples ``period_s`` apart in an exponential average of that time constant, (L,)."""
    return np.asarray(-np.expm1(-period_s / np.float32(time_constant_s)), np.float32)
