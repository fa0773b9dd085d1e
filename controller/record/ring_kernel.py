"""Writes the arrays of a tick into a ring's file, in a single compiled call."""

from __future__ import annotations

import numpy as np

from slicepilot.env.compiled import kernel
from slicepilot.env.knobs import NUM_KNOBS


@kernel
def put(
    slot: int,
    floats: np.ndarray,
    masks: np.ndarray,
    valids: np.ndarray,
    slices: np.ndarray,
    node: np.ndarray,
    valid: np.ndarray,
    wanted: np.ndarray,
    allowed: np.ndarray,
    applied: np.ndarray,
    drawn: np.ndarray,
    reasons: np.ndarray,
) -> None:
    """Fill a row of ``floats`` (from ``slices`` to ``drawn``), of ``masks`` and of ``valids``.

    Raises:
        ValueError: an array has the wrong shape.
    """
    row, num_slices = floats[slot], masks.shape[1]
    nothing = np.float32(np.nan)
    if valid.shape != (num_slices, 1) or len(reasons) != num_slices:
        raise ValueError("valid or reasons of another shape")
    if drawn.shape != (num_slices, NUM_KNOBS):
        raise ValueError("draw of another shape")
    if slices.size + node.size + 4 * NUM_KNOBS * num_slices != len(row):
        raise ValueError("telemetry of another shape")
    at = 0
    for k in range(len(slices)):
        for s in range(num_slices):
            row[at] = slices[k, s, 0]
            at += 1
    for k in range(len(node)):
        row[at] = node[k, 0]
        at += 1
    for knobs in (wanted, allowed, applied):
        if knobs.shape != (NUM_KNOBS, num_slices, 1):
            raise ValueError("knobs of another shape")
        for k in range(NUM_KNOBS):
            for s in range(num_slices):
                row[at] = knobs[k, s, 0]
                at += 1
    for s in range(num_slices):
        for k in range(NUM_KNOBS):
            row[at] = drawn[s, k]
            at += 1
    # A single bit pattern for NaN, because evidence identifies ticks by their bytes.
    for at in range(len(row)):
        if row[at] != row[at]:
            row[at] = nothing
    for s in range(num_slices):
        masks[slot, s], valids[slot, s] = reasons[s], valid[s, 0]
