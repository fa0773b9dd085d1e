"""The arithmetic of encoder and decoder, for one lane as for thousands; see `slicepilot.env.encoding`.

Axes of knobs, (3, 5, S): the lowest and the highest position; how positions become logarithms of limits, or nice; and
the position above which a knob is not set at all.
"""

from __future__ import annotations

import math

import numpy as np

from .arrays import BoolArray, FloatArray
from .compiled import kernel
from .knobs import NICE, NUM_KNOBS

LOW, HIGH, GAIN, OFFSET, NONE_ABOVE = range(5)
NUM_AXES = 5
LANES_AT_ONCE = 16
"""They fill the lines of the cache that they are read in."""
ZERO, ONE, INFINITY = np.float32(0.0), np.float32(1.0), np.float32(np.inf)


@kernel
def decode(action: FloatArray, axes: FloatArray, values: FloatArray, rows: FloatArray) -> bool:
    """Knobs (3, S, L), of limits their logarithms, and positions (3, S, L) of actions (L, S, 3).

    Returns:
        Whether all actions are finite.
    """
    finite = True
    lanes, num_slices, _ = action.shape
    for knob in range(NUM_KNOBS):
        for s in range(num_slices):
            low, high, none_above = axes[knob, LOW, s], axes[knob, HIGH, s], axes[knob, NONE_ABOVE, s]
            gain, offset = axes[knob, GAIN, s], axes[knob, OFFSET, s]
            for lane in range(lanes):
                value = action[lane, s, knob]
                finite &= math.isfinite(value)
                within = min(max(value, low), high)
                if knob == NICE:
                    nice = np.float32(np.rint(within * gain))
                    values[knob, s, lane], rows[knob, s, lane] = nice, nice / gain
                else:
                    none = value > none_above
                    values[knob, s, lane] = INFINITY if none else within * gain + offset
                    rows[knob, s, lane] = ONE if none else within
    return finite


@kernel
def encode_knobs(values: FloatArray, axes: FloatArray, rows: FloatArray) -> None:
    """Positions of knobs, both (3, S, L)."""
    _, num_slices, lanes = values.shape
    for knob in range(NUM_KNOBS):
        for s in range(num_slices):
            low, high = axes[knob, LOW, s], axes[knob, HIGH, s]
            gain, offset = axes[knob, GAIN, s], axes[knob, OFFSET, s]
            for lane in range(lanes):
                value = values[knob, s, lane]
                if knob == NICE:
                    rows[knob, s, lane] = min(max(value / gain, low), high)
                elif value > ZERO and math.isfinite(value):
                    rows[knob, s, lane] = min(max((np.float32(math.log(value)) - offset) / gain, low), high)
                else:
                    rows[knob, s, lane] = ONE


@kernel
def over_reference(slices: FloatArray, scale: FloatArray, out: FloatArray) -> None:
    """1 + x / reference of what is measured, (F, S, L); 1 where x is no number above 0."""
    fields, num_slices, lanes = out.shape
    for field in range(fields):
        for s in range(num_slices):
            for lane in range(lanes):
                value = slices[field, s, lane] * scale[0, field]
                out[field, s, lane] = ONE + (max(ZERO, value))


@kernel
def fill(
    logarithms: FloatArray,
    node: FloatArray,
    valid: BoolArray,
    scale: FloatArray,
    knob_rows: FloatArray,
    fixed: FloatArray,
    active_at: int,
    node_at: int,
    table: FloatArray,
) -> None:
    """Write a table (L, S, D or more) of rows (F, S, L), (N, L), (S, L), (3, S, L) and, all else, (D, S, L)."""
    lanes, num_slices, _ = table.shape
    measured, columns, knobs_end = len(logarithms), len(fixed), len(logarithms) + NUM_KNOBS
    for first in range(0, lanes, LANES_AT_ONCE):
        stop = min(first + LANES_AT_ONCE, lanes)
        for s in range(num_slices):
            for column in range(measured):
                for lane in range(first, stop):
                    table[lane, s, column] = min(logarithms[column, s, lane] * scale[1, column], ONE)
            for knob in range(NUM_KNOBS):
                for lane in range(first, stop):
                    table[lane, s, measured + knob] = knob_rows[knob, s, lane]
            for column in range(knobs_end, columns):
                for lane in range(first, stop):
                    table[lane, s, column] = fixed[column, s, lane]
            for lane in range(first, stop):
                table[lane, s, active_at] = ONE if valid[s, lane] else ZERO
            for row in range(len(node)):
                for lane in range(first, stop):
                    value = node[row, lane]
                    table[lane, s, node_at + row] = min(value, ONE) if value > ZERO else ZERO
