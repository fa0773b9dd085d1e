"""Keeping knobs inside what the slices declare."""

from __future__ import annotations

import numpy as np

from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import EGRESS, KNOB_FIELDS, NICE, Knobs
from slicepilot.env.slices import SliceSet

TINY = np.float32(1e-3)
# Each round saturates at least one more slice; what is left to share out after these rounds is negligible.
FILL_ROUNDS = 6


def within_bounds(knobs: Knobs, slices: SliceSet) -> Knobs:
    """The nearest knobs that the slices' `KnobBounds` allow. A limit or rate that is off (inf; for egress also 0) stays
    off."""
    low, high = (np.stack([slices.bound(knob, side) for knob in KNOB_FIELDS]) for side in (0, 1))
    none = np.isinf(knobs.values)
    none[NICE] = False
    none[EGRESS] |= knobs.egress_mbps == 0
    return Knobs(np.where(none, knobs.values, np.clip(knobs.values, low, high)), knobs.nice_scope)


def most_cpu_mcpu(slices: SliceSet, context: Context) -> FloatArray:
    """The CPU that a limit can usefully grant: all that the UPF's threads can use, inside the bounds, (S, L)."""
    usable = np.float32(1e3) * np.minimum(context.threads, context.logical_cpus)
    return np.clip(usable, slices.bound("cpu_limit_mcpu", 0), slices.bound("cpu_limit_mcpu", 1))


def smoothing(period_s: FloatArray, time_constant_s: float) -> FloatArray:
    """Weight of the newest of samples ``period_s`` apart in an exponential average of that time constant, (L,)."""
    return np.asarray(-np.expm1(-period_s / np.float32(time_constant_s)), np.float32)


def filled(given: FloatArray, most: FloatArray, claim: FloatArray, capacity: FloatArray) -> FloatArray:
    """``given`` plus a weighted max-min share, by ``claim``, of the rest of a capacity (L,); at most ``most``, (S, L)
    each."""
    given = np.array(given, np.float32)
    for _ in range(FILL_ROUNDS):
        takers = claim * (given < most)
        level = (capacity - given.sum(axis=0)) / np.maximum(takers.sum(axis=0), TINY)
        np.minimum(given + takers * level, most, out=given)
    return given
