"""The arrays of one tick, put where they belong in a ring's file: one compiled call for some thirty of NumPy's."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def put(
    slot: int,
    floats: np.ndarray,
    masks: np.ndarray,
    valids: np.ndarray,
    log_density: float,
    age_s: np.ndarray,
    slices: np.ndarray,
    node: np.ndarray,
    valid: np.ndarray,
    wanted_limits: np.ndarray,
    wanted_nices: np.ndarray,
    wanted_rates: np.ndarray,
    allowed_limits: np.ndarray,
    allowed_nices: np.ndarray,
    allowed_rates: np.ndarray,
    applied_limits: np.ndarray,
    applied_nices: np.ndarray,
    applied_rates: np.ndarray,
    drawn: np.ndarray,
    reasons: np.ndarray,
) -> None:
    """Fill a row of ``floats`` (from ``age_s`` to ``drawn``), of ``masks`` and of ``valids``.

    Raises:
        ValueError: arrays that do not belong there; nothing has been read or written out of bounds.
    """
    row, num_slices = floats[slot], masks.shape[1]
    shape = valid.shape
    if shape != (num_slices, 1) or len(reasons) != num_slices:
        raise ValueError("valid or reasons of another shape")
    if drawn.shape != (num_slices, 3):
        raise ValueError("draw of another shape")
    if slices.size + node.size + 12 * num_slices + 2 != len(row):
        raise ValueError("telemetry of another shape")
    row[0], row[1] = age_s[0], log_density
    at = 2
    for k in range(len(slices)):
        for s in range(num_slices):
            row[at] = slices[k, s, 0]
            at += 1
    for k in range(len(node)):
        row[at] = node[k, 0]
        at += 1
    wanted = wanted_limits, wanted_nices, wanted_rates
    allowed = allowed_limits, allowed_nices, allowed_rates
    for values in (*wanted, *allowed, applied_limits, applied_nices, applied_rates):
        if values.shape != shape:
            raise ValueError("knobs of another shape")
        for s in range(num_slices):
            row[at] = values[s, 0]
            at += 1
    for s in range(num_slices):
        for k in range(3):
            row[at] = drawn[s, k]
            at += 1
    for s in range(num_slices):
        masks[slot, s], valids[slot, s] = reasons[s], valid[s, 0]
