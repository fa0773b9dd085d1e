"""`ObservationEncoder` and `KnobDecoder` for one lane, compiled: between them they are some thirty NumPy calls."""

from __future__ import annotations

import math

import numpy as np

from slicepilot.env.arrays import FloatArray
from slicepilot.env.compiled import Array, kernel
from slicepilot.env.encoding import (
    FEATURES,
    KNOB_FEATURES,
    NICE_AXIS,
    NODE_FEATURES,
    NONE_ABOVE,
    TELEMETRY_SCALE,
    KnobDecoder,
    ObservationEncoder,
)
from slicepilot.env.knobs import NICE, NUM_KNOBS, Knobs, NiceScope
from slicepilot.env.telemetry import SLICE_FIELDS, Telemetry

_KNOBS_AT, _NODE_AT, _ACTIVE = (FEATURES.index(name) for name in (KNOB_FEATURES[0], NODE_FEATURES[0], "active"))
NO_NUMBER = "action: not a number; accepted: finite values, clipped to -1..1"
_ZERO, _ONE, _NONE_ABOVE, _NICE_AXIS = (np.float32(value) for value in (0.0, 1.0, NONE_ABOVE, NICE_AXIS))


class CompiledCodec:
    """What encoder and decoder do, to float32's precision, for one lane.

    Args:
        encoder: of the run.
        decoder: for the same slices.

    Attributes:
        table: the last observation (1, S, D); what is fixed for a run is in it from the start.
        nice_scope: the decoder's.
        scale, axes: for `encode` and `decode`.
    """

    def __init__(self, encoder: ObservationEncoder, decoder: KnobDecoder) -> None:
        num_slices = len(decoder.slices)
        self.nice_scope: NiceScope = decoder.nice_scope
        reference, full = np.asarray([TELEMETRY_SCALE[field] for field in SLICE_FIELDS]).T
        self.scale = np.stack([1.0 / reference, 1.0 / np.log1p(full / reference)], axis=1)
        self.table = encoder.encode(Telemetry.empty(num_slices), np.zeros((NUM_KNOBS, num_slices, 1), np.float32))
        axes = np.stack([*decoder.row_low, *decoder.row_high, *decoder.log_gain, *decoder.log_offset])[..., 0]
        self.axes = np.ascontiguousarray(axes, np.float32)

    def encode(self, telemetry: Telemetry, knob_rows: FloatArray) -> FloatArray:
        """`table`, which the next call overwrites."""
        encode(telemetry.slices, telemetry.node, telemetry.valid, knob_rows, self.scale, self.table)
        return self.table

    def decode(self, action: FloatArray) -> tuple[Knobs, FloatArray]:
        """Knobs for an action (1, S, 3), and what the decoder's ``encode`` would say of them; raises ValueError."""
        rows = action.transpose(2, 1, 0).copy()
        knobs = np.empty_like(rows)
        if not decode(self.axes, rows, knobs):
            raise ValueError(NO_NUMBER)
        return Knobs(knobs, self.nice_scope), rows

    def knob_rows(self, knobs: Knobs) -> FloatArray:
        """What the decoder's ``encode`` says of knobs that it did not decide, (3, S, 1); fresh."""
        rows = np.empty_like(knobs.values)
        _encode_knobs(knobs.values, self.axes, rows)
        return rows


KNOB_ROWS, AXES = Array(np.float32, 3), Array(np.float32, 2)
MEASURED = Array(np.float32, 3), Array(np.float32, 2), Array(np.bool_, 2)
SCALE = Array(np.float64, 2)


@kernel((KNOB_ROWS, AXES, KNOB_ROWS))
def _encode_knobs(knobs: np.ndarray, axes: np.ndarray, rows: np.ndarray) -> None:
    for s in range(knobs.shape[1]):
        for knob in range(NUM_KNOBS):
            low, high = axes[knob, s], axes[NUM_KNOBS + knob, s]
            if knob == NICE:
                rows[knob, s, 0] = min(max(knobs[knob, s, 0] / _NICE_AXIS, low), high)
                continue
            limit = knobs[knob, s, 0]
            if limit > _ZERO and math.isfinite(limit):
                gain, offset = axes[2 * NUM_KNOBS + knob // 2, s], axes[2 * NUM_KNOBS + 2 + knob // 2, s]
                rows[knob, s, 0] = min(max((math.log(limit) - offset) / gain, low), high)
            else:
                rows[knob, s, 0] = _ONE


@kernel((*MEASURED, KNOB_ROWS, SCALE, Array(np.float32, 3)))
def encode(
    measured: np.ndarray,
    node: np.ndarray,
    valid: np.ndarray,
    knob_rows: np.ndarray,
    scale: np.ndarray,
    table: np.ndarray,
) -> None:
    """Telemetry (8, S, 1), (2, 1), (S, 1) and knobs (3, S, 1) to a table (1, S, D) of either precision."""
    for s in range(len(valid)):
        row = table[0, s]
        for field in range(len(scale)):
            value = measured[field, s, 0]
            position = math.log1p(value * scale[field, 0]) * scale[field, 1] if value > _ZERO else 0.0
            row[field] = np.float32(min(position, 1.0))
        for knob in range(len(knob_rows)):
            row[_KNOBS_AT + knob] = knob_rows[knob, s, 0]
        row[_ACTIVE] = valid[s, 0]
        for field in range(len(node)):
            value = node[field, 0]
            row[_NODE_AT + field] = min(value, _ONE) if value > _ZERO else _ZERO


@kernel((AXES, KNOB_ROWS, KNOB_ROWS))
def decode(axes: np.ndarray, rows: np.ndarray, knobs: np.ndarray) -> bool:
    """Knobs for actions, both (3, S, 1), which become what the decoder's ``encode`` would say; False if an action is
    not a number.

    ``axes`` (10, S) here and above: lowest and highest row of each knob, gain of both limits' axes, their offset.
    """
    for s in range(rows.shape[1]):
        for knob in range(NUM_KNOBS):
            value = rows[knob, s, 0]
            if not math.isfinite(value):
                return False
            within = min(max(value, axes[knob, s]), axes[NUM_KNOBS + knob, s])
            if knob == NICE:
                level = np.float32(np.rint(within * _NICE_AXIS))
                knobs[knob, s, 0], rows[knob, s, 0] = level, level / _NICE_AXIS
            elif value > _NONE_ABOVE:
                knobs[knob, s, 0], rows[knob, s, 0] = np.inf, _ONE
            else:
                gain, offset = axes[2 * NUM_KNOBS + knob // 2, s], axes[2 * NUM_KNOBS + 2 + knob // 2, s]
                knobs[knob, s, 0], rows[knob, s, 0] = math.exp(within * gain + offset), within
    return True
