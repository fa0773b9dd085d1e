"""From telemetry to observation and from action to knobs: the two objects that training and serving share.

Both work for any number of slices: an observation is a table (S, D) with one row per slice, an action a table (S, 3).
Quantities that span decades are log-scaled. What both objects need to know is small and plain, so that it can travel
inside a policy bundle.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import FloatArray
from .backend import Context
from .knobs import CPU_LIMIT, EGRESS, KNOB_FIELDS, NICE, NUM_KNOBS, Knobs, NiceScope
from .telemetry import NODE_FIELDS, SLICE_FIELDS, Telemetry

if TYPE_CHECKING:  # as in `backend`
    from .slices import SliceSet

# Per telemetry row: (value that maps to about the middle of the logarithmic part's start, value that maps to 1).
# A row is encoded as log1p(x / reference) / log1p(full_scale / reference), clipped to 0..1. A reference near the full
# scale makes a row nearly linear, which is what the ratios want; loss resolves down to 1e-3.
TELEMETRY_SCALE: dict[str, tuple[float, float]] = {
    "offered_mbps": (1.0, 10_000.0),
    "carried_mbps": (1.0, 10_000.0),
    "delay_p50_us": (10.0, 1e7),
    "delay_p99_us": (10.0, 1e7),
    "loss_ratio": (0.01, 1.0),
    "cpu_use_mcpu": (50.0, 16_000.0),
    "throttled_ratio": (1.0, 1.0),
    "runqueue_delay_us": (10.0, 1e6),
}
STATIC_FEATURES = ("committed_mbps", "delay_bound_us", "relative_weight", "active")
KNOB_FEATURES = ("cpu_limit", "nice", "egress")  # of `KNOB_FIELDS`, without their units
NODE_FEATURES = NODE_FIELDS
CONTEXT_FEATURES = ("control_period", "logical_cpus", "uplink_capacity")
FEATURES = (*SLICE_FIELDS, *KNOB_FEATURES, *STATIC_FEATURES, *NODE_FEATURES, *CONTEXT_FEATURES)
NUM_FEATURES = len(FEATURES)

# The knobs whose axis is logarithmic, as a slice of the rows of `KNOB_FIELDS`: CPU limit and egress rate.
_LIMITS = slice(CPU_LIMIT, EGRESS + 1, EGRESS - CPU_LIMIT)
_T = len(SLICE_FIELDS)
_KNOBS = slice(_T, _T + NUM_KNOBS)
_STATIC = slice(_KNOBS.stop, _KNOBS.stop + len(STATIC_FEATURES))
_NODE = slice(_STATIC.stop, _STATIC.stop + len(NODE_FEATURES))
_CONTEXT = slice(_NODE.stop, NUM_FEATURES)

# As arrays without axes: NumPy calls take those faster than its scalars.
ZERO, ONE, INFINITY = (np.asarray(value, np.float32) for value in (0.0, 1.0, np.inf))
NONE_ABOVE = np.asarray(0.9, np.float32)  # the end of a limit's axis that means "none"

PERIOD_RANGE_S = (0.002, 30.0)
CPUS_RANGE = (0.5, 256.0)
UPLINK_RANGE_MBPS = (1.0, 100_000.0)

# What -1 and `NONE_ABOVE` mean on the axes of limits, and 1 on that of nice. An action means the same whatever bounds a
# slice declares, so that a policy can serve slices with other bounds than it was trained on; an axis is stretched only
# for bounds that lie outside it.
CPU_AXIS_PER_THREAD_MCPU = (20.0, 1000.0)
EGRESS_AXIS_MBPS = (1.0, 10_000.0)
NICE_AXIS = np.float32(20.0)


def _log_unit(value: FloatArray | float, bounds: tuple[float, float]) -> FloatArray:
    """Position of a positive value between two bounds on a logarithmic axis, clipped to 0..1."""
    low, high = np.log(bounds[0]), np.log(bounds[1])
    return np.clip((np.log(np.maximum(value, 1e-9)) - low) / (high - low), 0, 1).astype(np.float32)


class KnobDecoder:
    """Actions in [-1, 1]^(S, 3) to knobs inside the declared bounds, and back.

    Columns: CPU limit, nice, egress rate. Limits run on logarithmic axes (`CPU_AXIS_PER_THREAD_MCPU` times the threads
    of the slice's UPF, `EGRESS_AXIS_MBPS`) up to 0.9; the outermost 5% of the axis (above 0.9) means "none". Nice runs
    linearly and is rounded to whole numbers. What lies outside a slice's bounds is moved to the nearer of them.

    Attributes:
        log_gain, log_offset: of both limits' axes, (2, S, 1): the logarithm of a limit is gain * a + offset.
        row_low, row_high: each knob's bounds on its axis, (3, S, 1).
    """

    def __init__(self, slices: SliceSet, nice_scope: NiceScope = "group") -> None:
        self.slices = slices
        self.nice_scope: NiceScope = nice_scope
        self._action_shape = (len(slices), NUM_KNOBS)
        columns = KNOB_FIELDS[_LIMITS]
        low, self._high = (np.stack([slices.bound(column, side) for column in columns]) for side in (0, 1))
        unit = np.stack([slices.column("upf_threads"), np.ones((len(slices), 1), np.float32)])
        axes = np.asarray([CPU_AXIS_PER_THREAD_MCPU, EGRESS_AXIS_MBPS], np.float32)[:, :, None, None]
        axis_low, axis_high = np.minimum(axes[:, 0] * unit, low), np.maximum(axes[:, 1] * unit, self._high)
        # a in [-1, NONE_ABOVE] -> log(axis_low) .. log(axis_high)
        self.log_gain = (np.log(axis_high) - np.log(axis_low)) / np.float32(1.0 + NONE_ABOVE)
        self.log_offset = np.log(axis_low) + self.log_gain
        # The bounds on the axes, (3, S, 1).
        self.row_low, self.row_high = (
            self._rows(limits, slices.bound("nice", side)) for side, limits in enumerate((low, self._high))
        )

    def _rows(self, limits: FloatArray, nice: FloatArray) -> FloatArray:
        """Positions (3, S, L) on the axes of finite limits (2, S, L) and nice (S, L)."""
        # Rounding must not push an upper bound over to "none", nor a lower one off the axis.
        axis = np.clip((np.log(limits) - self.log_offset) / self.log_gain, -1.0, NONE_ABOVE)
        return np.stack([axis[0], nice / NICE_AXIS, axis[1]]).astype(np.float32)

    def decode(self, action: FloatArray) -> tuple[Knobs, FloatArray]:
        """Knobs for actions of shape (S, 3) or (L, S, 3), and what `encode` would say of them, (3, S, L). Fresh arrays.

        Raises:
            ValueError: wrong shape, or an action that is not a number.
        """
        table = np.asarray(action, np.float32)
        if table.ndim == 2:
            table = table[None]
        if table.shape[1:] != self._action_shape:
            raise ValueError(
                f"action: shape {tuple(np.shape(action))}; accepted: {self._action_shape} or a batch of it"
            )
        rows = table.transpose(2, 1, 0).copy()
        if not math.isfinite(np.add.reduce(rows, axis=None)):
            raise ValueError("action: not a number; accepted: finite values, clipped to -1..1")
        limit_rows, nice_row = rows[_LIMITS], rows[NICE]
        none = limit_rows > NONE_ABOVE
        rows.clip(self.row_low, self.row_high, out=rows)
        np.copyto(limit_rows, INFINITY, where=none)
        values = np.empty_like(rows)
        limits, nice = values[_LIMITS], values[NICE]
        np.multiply(limit_rows, self.log_gain, out=limits)
        limits += self.log_offset
        np.exp(limits, out=limits)
        np.minimum(limit_rows, ONE, out=limit_rows)
        np.multiply(nice_row, NICE_AXIS, out=nice)
        np.rint(nice, out=nice)
        np.divide(nice, NICE_AXIS, out=nice_row)
        return Knobs(values, self.nice_scope), rows

    def encode(self, knobs: Knobs) -> FloatArray:
        """The inverse: (3, S, L) in [-1, 1]; "none" becomes 1. An egress of 0 (shaper without a rate) is "none"."""
        limits = knobs.values[_LIMITS]
        none = ~np.isfinite(limits) | (limits <= 0)
        rows = self._rows(np.where(none, self._high, limits), knobs.nice)
        rows = np.clip(rows, self.row_low, self.row_high)
        rows[_LIMITS] = np.where(none, ONE, rows[_LIMITS])
        return rows


class ObservationEncoder:
    """Telemetry and current knobs to a bounded table: float32 (L, S, D), every entry in [-1, 1].

    D = `NUM_FEATURES`, in the order of `FEATURES`. What is fixed for a run (promises, control period, the node's size)
    comes from its `Context` and is written once; buffers are kept between calls, the table returned is a fresh array.
    """

    def __init__(self, context: Context) -> None:
        promises = context.promises
        num_slices, lanes = promises.weight.shape
        shape = (_T, num_slices, lanes)
        scale = np.asarray([TELEMETRY_SCALE[f] for f in SLICE_FIELDS], np.float64)[:, :, None, None]
        # Operands of full shape: NumPy has fast loops for them, not for all operations with a scalar.
        self._inverse_reference = np.broadcast_to(1.0 / scale[:, 0], shape).astype(np.float32)
        self._inverse_span = np.broadcast_to(1.0 / np.log1p(scale[:, 1] / scale[:, 0]), shape).astype(np.float32)
        self._zeros, self._ones = np.zeros(shape, np.float32), np.ones(shape, np.float32)
        # Rows of a multiple of 512 bytes would share few lines of the cache when they are transposed: pad them.
        width = lanes if lanes % 128 else lanes + 16
        self._features = np.zeros((NUM_FEATURES, num_slices, width), np.float32)[..., :lanes]
        self._measured = self._features[:_T]
        self._knobs = self._features[_KNOBS]
        self._node = self._features[_NODE]
        static = self._features[_STATIC]
        context_rows = self._features[_CONTEXT]
        self._active = static[3]
        static[0] = scaled("carried_mbps", promises.committed_mbps)
        static[1] = scaled("delay_p99_us", promises.delay_bound_us)
        static[2] = promises.weight / promises.weight.max(axis=0)
        context_rows[0] = _log_unit(context.period_s, PERIOD_RANGE_S)
        context_rows[1] = _log_unit(context.logical_cpus, CPUS_RANGE)
        context_rows[2] = _log_unit(context.uplink_mbps, UPLINK_RANGE_MBPS)

    def encode(self, telemetry: Telemetry, knob_rows: FloatArray) -> FloatArray:
        """Encode one measurement; ``knob_rows`` (3, S, L) are the current knobs as `KnobDecoder.encode` gives them.

        Figures that are not numbers are read as zero: an observation is always finite.
        """
        measured = self._measured
        np.multiply(telemetry.slices, self._inverse_reference, out=measured)
        np.fmax(measured, self._zeros, out=measured)
        np.add(measured, ONE, out=measured)
        np.log(measured, out=measured)  # log1p is not vectorised; what it would add is below float32's resolution
        np.multiply(measured, self._inverse_span, out=measured)
        np.minimum(measured, self._ones, out=measured)
        self._knobs[:] = knob_rows
        np.fmax(telemetry.node[:, None], ZERO, out=self._node)
        np.minimum(self._node, ONE, out=self._node)
        self._active[:] = telemetry.valid
        return self._features.transpose(2, 1, 0).copy()


def scaled(field: str, value: FloatArray) -> FloatArray:
    """A telemetry value on its field's encoded axis (see `TELEMETRY_SCALE`)."""
    reference, full = TELEMETRY_SCALE[field]
    return np.clip(np.log1p(value / reference) / np.log1p(full / reference), 0, 1).astype(np.float32)


def unscaled(field: str, encoded: FloatArray) -> FloatArray:
    """The telemetry value that an encoded entry stands for (exact below the field's full scale)."""
    reference, full = TELEMETRY_SCALE[field]
    return np.asarray(reference * np.expm1(encoded * np.log1p(full / reference)), np.float32)


def encoder_layout() -> dict[str, Any]:
    """Names and scales of the features in order: a bundle stores them, and refuses a runtime whose layout differs."""
    return {"features": list(FEATURES), "scale": {name: list(pair) for name, pair in TELEMETRY_SCALE.items()}}
