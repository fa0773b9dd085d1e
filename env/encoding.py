"""From telemetry to observation and from action to knobs: the two objects that training and serving share.

Both work for any number of slices: an observation is a table (S, D) with one row per slice, an action a table (S, 3).
Quantities that span decades are log-scaled. What both objects need to know is small and plain, so that it can travel
inside a policy bundle.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from .arrays import FloatArray
from .backend import Context
from .knobs import CPU_LIMIT, EGRESS, KNOB_FIELDS, NICE, NUM_KNOBS, Knobs, NiceScope
from .telemetry import Telemetry

if TYPE_CHECKING:  # as in `backend`
    from .slices import SliceSet

# What policies see of a slice: the first rows of `SLICE_FIELDS`, each with its (reference, below which the scale is
# about linear and above logarithmic; full scale, which maps to 1). A row is encoded as log1p(x / reference) /
# log1p(full_scale / reference), clipped to 0..1. A reference near the full scale makes a row nearly linear, which suits
# ratios; loss resolves down to 1e-3.
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
NODE_FEATURES = ("cpu_idle_ratio", "uplink_use_ratio")  # the first rows of `NODE_FIELDS`
CONTEXT_FEATURES = ("control_period", "logical_cpus", "uplink_capacity")
FEATURES = (*TELEMETRY_SCALE, *KNOB_FEATURES, *STATIC_FEATURES, *NODE_FEATURES, *CONTEXT_FEATURES)
NUM_FEATURES = len(FEATURES)

# The knobs whose axis is logarithmic, as a slice of the rows of `KNOB_FIELDS`: CPU limit and egress rate.
_LIMITS = slice(CPU_LIMIT, EGRESS + 1, EGRESS - CPU_LIMIT)
_T, _N = len(TELEMETRY_SCALE), len(NODE_FEATURES)
_STATIC_AT, _ACTIVE, _NODE_AT = (FEATURES.index(name) for name in ("committed_mbps", "active", NODE_FEATURES[0]))
_CONTEXT_AT = FEATURES.index("control_period")

NONE_ABOVE = np.float32(0.9)
"""The end of a limit's axis that means "none"."""

PERIOD_RANGE_S = (0.002, 30.0)
CPUS_RANGE = (0.5, 256.0)
UPLINK_RANGE_MBPS = (1.0, 100_000.0)

# What -1 and `NONE_ABOVE` mean on the axes of limits, and 1 on that of nice. An action means the same whatever bounds a
# slice declares, so that a policy can serve slices with other bounds than it was trained on; an axis is stretched only
# for bounds that lie outside it.
CPU_AXIS_PER_THREAD_MCPU = (20.0, 1000.0)
EGRESS_AXIS_MBPS = (1.0, 10_000.0)
NICE_AXIS = np.float32(20.0)


@functools.cache
def _kernels() -> Any:
    """The compiled arithmetic, imported on first use: it brings numba, which readers of layouts do without.

    Not an attribute of the objects below: a module cannot be copied or pickled, and environments hold these objects.
    """
    from . import encoding_kernels

    return encoding_kernels


class KnobDecoder:
    """Actions in [-1, 1]^(S, 3) to knobs inside the declared bounds, and back.

    Columns: CPU limit, nice, egress rate. Limits run on logarithmic axes (`CPU_AXIS_PER_THREAD_MCPU` times the threads
    of the slice's UPF, `EGRESS_AXIS_MBPS`) up to 0.9; the outermost 5% of the axis (above 0.9) means "none". Nice runs
    linearly and is rounded to whole numbers. What lies outside a slice's bounds is moved to the nearer of them.
    """

    def __init__(self, slices: SliceSet, nice_scope: NiceScope = "group") -> None:
        kernels = _kernels()
        self.slices = slices
        self.nice_scope: NiceScope = nice_scope
        self._action_shape = (len(slices), NUM_KNOBS)
        columns = KNOB_FIELDS[_LIMITS]
        low, high = (np.stack([slices.bound(column, side)[:, 0] for column in columns]) for side in (0, 1))
        unit = np.stack([slices.column("upf_threads")[:, 0], np.ones(len(slices), np.float32)])
        axes = np.asarray([CPU_AXIS_PER_THREAD_MCPU, EGRESS_AXIS_MBPS], np.float32)[:, :, None]
        axis_low, axis_high = np.minimum(axes[:, 0] * unit, low), np.maximum(axes[:, 1] * unit, high)
        # a in [-1, NONE_ABOVE] -> log(axis_low) .. log(axis_high): the logarithm of a limit is gain * a + offset.
        gain = (np.log(axis_high) - np.log(axis_low)) / np.float32(1.0 + NONE_ABOVE)
        offset = np.log(axis_low) + gain
        # Rounding must not push an upper bound over to "none", nor a lower bound off the axis.
        positions = np.clip((np.log([low, high]) - offset) / gain, -1.0, NONE_ABOVE)
        self.axes = np.empty((NUM_KNOBS, kernels.NUM_AXES, len(slices)), np.float32)
        for knob, limit in ((CPU_LIMIT, 0), (EGRESS, 1)):
            lowest, highest = positions[:, limit]
            self.axes[knob] = lowest, highest, gain[limit], offset[limit], np.full(len(slices), NONE_ABOVE)
        lowest, highest = (slices.bound("nice", side)[:, 0] / NICE_AXIS for side in (0, 1))
        self.axes[NICE] = np.broadcast_arrays(lowest, highest, NICE_AXIS, 0.0, np.inf)

    def decode(self, action: FloatArray) -> tuple[Knobs, FloatArray]:
        """Knobs for actions of shape (S, 3) or (L, S, 3), and what `encode` would say of them, (3, S, L). Fresh arrays.

        Raises:
            ValueError: wrong shape, or an action that is not a number.
        """
        table = np.asarray(action, np.float32, order="C")
        if table.ndim == 2:
            table = table[None]
        if table.shape[1:] != self._action_shape:
            raise ValueError(f"action: shape {np.shape(action)}: expected {self._action_shape} or a batch of it")
        values, rows = np.empty((2, NUM_KNOBS, table.shape[1], table.shape[0]), np.float32)
        if not _kernels().decode(table, self.axes, values, rows):
            raise ValueError("action: not a number: expected finite values, which are clipped to -1..1")
        limits = values[_LIMITS]
        np.exp(limits, out=limits)
        return Knobs(values, self.nice_scope), rows

    def encode(self, knobs: Knobs) -> FloatArray:
        """The inverse: (3, S, L) in [-1, 1]; "none" becomes 1. An egress of 0 (shaper without a rate) is "none"."""
        rows = np.empty(knobs.values.shape, np.float32)
        _kernels().encode_knobs(knobs.values, self.axes, rows)
        return rows


class ObservationEncoder:
    """Telemetry and current knobs to a bounded table: float32 (L, S, D), every entry in [-1, 1].

    D = `NUM_FEATURES`, in the order of `FEATURES`. What is fixed for a run (promises, control period, the node's size)
    comes from its `Context` and is read once.
    """

    def __init__(self, context: Context) -> None:
        promises = context.promises
        num_slices, lanes = promises.weight.shape
        reference, full = np.asarray(list(TELEMETRY_SCALE.values())).T
        self._scale = np.stack([1.0 / reference, 1.0 / np.log1p(full / reference)]).astype(np.float32)
        self._logarithms = np.empty((_T, num_slices, lanes), np.float32)
        self._fixed = np.zeros((NUM_FEATURES, num_slices, lanes), np.float32)
        static, context_rows = self._fixed[_STATIC_AT:], self._fixed[_CONTEXT_AT:]
        static[0] = scaled("carried_mbps", promises.committed_mbps)
        static[1] = scaled("delay_p99_us", promises.delay_bound_us)
        static[2] = promises.weight / promises.weight.max(axis=0)
        context_rows[0] = _log_unit(context.period_s, PERIOD_RANGE_S)
        context_rows[1] = _log_unit(context.logical_cpus, CPUS_RANGE)
        context_rows[2] = _log_unit(context.uplink_mbps, UPLINK_RANGE_MBPS)

    def encode(self, telemetry: Telemetry, knob_rows: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Encode one measurement; ``knob_rows`` (3, S, L) are the current knobs as `KnobDecoder.encode` gives them.

        Figures that are not numbers are read as zero: an observation is always finite. The table is ``out``, which may
        have further columns, or a fresh array.
        """
        if out is None:
            _, num_slices, lanes = self._fixed.shape
            out = np.empty((lanes, num_slices, NUM_FEATURES), np.float32)
        logarithms = self._logarithms
        _kernels().over_reference(telemetry.slices, self._scale, logarithms)
        np.log(logarithms, out=logarithms)  # NumPy's is SIMD code, a kernel's is not
        measured = logarithms, telemetry.node[:_N], telemetry.valid
        _kernels().fill(*measured, self._scale, knob_rows, self._fixed, _ACTIVE, _NODE_AT, out)
        return out


class Coding(Protocol):
    """What a policy sees of a run, and what its actions mean there; made of the run's slices and context.

    ``columns`` and ``actions`` are how many numbers a slice's row of the observation and of the action has.
    """

    columns: ClassVar[int]
    actions: ClassVar[int]

    def __init__(self, slices: SliceSet, context: Context) -> None: ...

    def encode(self, telemetry: Telemetry, knob_rows: FloatArray) -> FloatArray:
        """A table (L, S, columns) in [-1, 1] from telemetry and the rows (3, S, L) of the knobs that hold."""
        ...

    def decode(self, action: FloatArray) -> tuple[Knobs, FloatArray]:
        """Knobs and their rows for actions (L, S, actions); to be called after `encode` of the period before."""
        ...


class PlainCoding:
    """`ObservationEncoder` and `KnobDecoder`."""

    columns: ClassVar[int] = NUM_FEATURES
    actions: ClassVar[int] = NUM_KNOBS

    def __init__(self, slices: SliceSet, context: Context) -> None:
        self.encode, self.decode = ObservationEncoder(context).encode, KnobDecoder(slices).decode


def _log_unit(value: FloatArray | float, bounds: tuple[float, float]) -> FloatArray:
    """Position of a positive value between two bounds on a logarithmic axis, clipped to 0..1."""
    low, high = np.log(bounds[0]), np.log(bounds[1])
    return np.clip((np.log(np.maximum(value, 1e-9)) - low) / (high - low), 0, 1).astype(np.float32)


def scaled(field: str, value: FloatArray) -> FloatArray:
    """A telemetry value on its field's encoded axis (see `TELEMETRY_SCALE`)."""
    reference, full = TELEMETRY_SCALE[field]
    return np.clip(np.log1p(value / reference) / np.log1p(full / reference), 0, 1).astype(np.float32)


def unscaled(field: str, encoded: FloatArray) -> FloatArray:
    """The telemetry value of an encoded entry (exact below the field's full scale)."""
    reference, full = TELEMETRY_SCALE[field]
    return np.asarray(reference * np.expm1(encoded * np.log1p(full / reference)), np.float32)


def encoder_layout() -> dict[str, Any]:
    """Names and scales of the features in order: a bundle stores them, and refuses a runtime whose layout differs."""
    return {"features": list(FEATURES), "scale": {name: list(pair) for name, pair in TELEMETRY_SCALE.items()}}
