"""From telemetry to observation and from action to knobs: the two objects that training and serving share.

Both work for any number of slices: an observation is a table (S, D) with one row per slice, an action a table (S, 3).
Quantities that span decades are log-scaled. What both objects need to know is small and plain, so that it can travel
inside a policy bundle.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .knobs import Knobs, NiceScope
from .slices import FloatArray, SliceSet
from .telemetry import SLICE_FIELDS, Telemetry

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
KNOB_FEATURES = ("cpu_limit", "nice", "egress")
NODE_FEATURES = ("cpu_idle_ratio", "uplink_use_ratio")
CONTEXT_FEATURES = ("control_period", "logical_cpus", "uplink_capacity")
FEATURES = (*SLICE_FIELDS, *KNOB_FEATURES, *STATIC_FEATURES, *NODE_FEATURES, *CONTEXT_FEATURES)
NUM_FEATURES = len(FEATURES)
NUM_KNOBS = len(KNOB_FEATURES)

_T = len(SLICE_FIELDS)
_KNOBS = slice(_T, _T + NUM_KNOBS)
_STATIC = slice(_KNOBS.stop, _KNOBS.stop + len(STATIC_FEATURES))
_NODE = slice(_STATIC.stop, _STATIC.stop + len(NODE_FEATURES))
_CONTEXT = slice(_NODE.stop, NUM_FEATURES)

PERIOD_RANGE_S = (0.002, 30.0)
CPUS_RANGE = (0.5, 256.0)
UPLINK_RANGE_MBPS = (1.0, 100_000.0)


def _log_unit(value: FloatArray | float, bounds: tuple[float, float]) -> FloatArray:
    """Position of a positive value between two bounds on a logarithmic axis, clipped to 0..1."""
    low, high = np.log(bounds[0]), np.log(bounds[1])
    return np.clip((np.log(np.maximum(value, 1e-9)) - low) / (high - low), 0, 1).astype(np.float32)


@dataclass(frozen=True)
class EncoderSpec:
    """What the policy is told about its surroundings and cannot measure: one per deployment."""

    logical_cpus: float
    uplink_mbps: float


class KnobDecoder:
    """Actions in [-1, 1]^(S, 3) to knobs inside the declared bounds, and back.

    Columns: CPU limit, nice, egress rate. Limits run on a logarithmic axis from the lower to the upper bound; the
    outermost 5% of the axis (above 0.9) means "none". Nice runs linearly and is rounded to whole numbers.
    """

    NONE_ABOVE = 0.9

    def __init__(self, slices: SliceSet, nice_scope: NiceScope = "group") -> None:
        self.slices = slices
        self.nice_scope: NiceScope = nice_scope
        columns = ("cpu_limit_mcpu", "egress_mbps")
        low = np.stack([slices.bound(c, 0) for c in columns])
        high = np.stack([slices.bound(c, 1) for c in columns])
        self._low, self._high = low, high
        self._log_low, self._log_span = np.log(low), np.log(high / low)
        self._nice_low, self._nice_high = slices.bound("nice", 0), slices.bound("nice", 1)

    def decode(self, action: FloatArray) -> Knobs:
        """Knobs for actions of shape (S, 3) or (L, S, 3), freshly allocated with shape (S, L).

        Raises:
            ValueError: wrong shape, or an action that is not a number.
        """
        table = np.asarray(action, np.float32)
        if table.ndim == 2:  # noqa: PLR2004 - one lane
            table = table[None]
        if table.shape[1:] != (len(self.slices), NUM_KNOBS):
            raise ValueError(
                f"action: shape {tuple(np.shape(action))}; accepted: ({len(self.slices)}, {NUM_KNOBS}) or a batch of it"
            )
        rows = np.ascontiguousarray(table.T)
        np.maximum(rows, -1.0, out=rows)
        np.minimum(rows, 1.0, out=rows)
        limits = rows[::2] + 1.0
        limits *= 1.0 / (1.0 + self.NONE_ABOVE)
        none = limits > 1.0
        limits *= self._log_span
        limits += self._log_low
        np.exp(limits, out=limits)
        limits[none] = np.inf
        nice = rows[1]
        if not np.isfinite(nice.sum() + rows.sum()):
            raise ValueError("action: not a number; accepted: finite values, clipped to -1..1")
        nice += 1.0
        nice *= 0.5 * (self._nice_high - self._nice_low)
        nice += self._nice_low
        np.rint(nice, out=nice)
        return Knobs(limits[0], nice, limits[1], self.nice_scope)

    def encode(self, knobs: Knobs) -> FloatArray:
        """The inverse: (3, S, L) in [-1, 1]; "none" becomes 1. An egress of 0 (shaper without a rate) is "none"."""
        limits = np.stack([knobs.cpu_limit_mcpu, knobs.egress_mbps])
        none = ~np.isfinite(limits) | (limits <= 0)
        inside = np.clip(np.where(none, self._high, limits), self._low, self._high)
        unit = (np.log(inside) - self._log_low) / self._log_span
        limits = np.where(none, 1.0, unit * (1.0 + self.NONE_ABOVE) - 1.0)
        nice = 2.0 * (knobs.nice - self._nice_low) / (self._nice_high - self._nice_low) - 1.0
        return np.stack([limits[0], np.clip(nice, -1, 1), limits[1]]).astype(np.float32)


class ObservationEncoder:
    """Telemetry and current knobs to a bounded table: float32 (L, S, D), every entry in [-1, 1].

    D = `NUM_FEATURES`, in the order of `FEATURES`. Buffers for L lanes are allocated once; the array that `encode`
    returns is a fresh copy, so callers may keep it.
    """

    def __init__(self, slices: SliceSet, spec: EncoderSpec, num_lanes: int = 1) -> None:
        self.slices, self.spec, self.num_lanes = slices, spec, num_lanes
        size = len(slices)
        scale = np.asarray([TELEMETRY_SCALE[f] for f in SLICE_FIELDS], np.float64)
        self._inverse_reference = np.broadcast_to(
            (1.0 / scale[:, 0]).astype(np.float32)[:, None, None], (_T, size, num_lanes)
        ).copy()
        self._inverse_span = np.broadcast_to(
            (1.0 / np.log1p(scale[:, 1] / scale[:, 0])).astype(np.float32)[:, None, None],
            (_T, size, num_lanes),
        ).copy()
        self._features = np.zeros((NUM_FEATURES, size, num_lanes), np.float32)
        self._measured = self._features[:_T]
        self._knobs = self._features[_KNOBS]
        self._node = self._features[_NODE]
        self._active = self._features[_STATIC][3]
        static = self._features[_STATIC]
        committed, bound_us = slices.column("sla.committed_mbps"), 1e3 * slices.column("sla.delay_bound_ms")
        static[0] = self._scaled("carried_mbps", committed)
        static[1] = self._scaled("delay_p99_us", bound_us)
        weight = slices.column("weight")
        static[2] = weight / weight.max()
        context = self._features[_CONTEXT]
        context[1] = _log_unit(spec.logical_cpus, CPUS_RANGE)
        context[2] = _log_unit(spec.uplink_mbps, UPLINK_RANGE_MBPS)
        self._period = context[0]
        self._uplink = context[2]
        self._cpus = context[1]

    @staticmethod
    def _scaled(field: str, value: FloatArray) -> FloatArray:
        reference, full = TELEMETRY_SCALE[field]
        return np.clip(np.log1p(value / reference) / np.log1p(full / reference), 0, 1).astype(np.float32)

    @staticmethod
    def unscale(field: str, encoded: FloatArray) -> FloatArray:
        """The telemetry value an encoded entry stands for (exact below the field's full scale)."""
        reference, full = TELEMETRY_SCALE[field]
        return np.asarray(reference * np.expm1(encoded * np.log1p(full / reference)), np.float32)

    def set_context(
        self, period_s: FloatArray | float, logical_cpus: FloatArray | float, uplink_mbps: FloatArray | float
    ) -> None:
        """Tell the encoder each lane's control period (s), logical CPUs and uplink capacity (scalars or (L,))."""
        self._period[:] = _log_unit(period_s, PERIOD_RANGE_S)
        self._cpus[:] = _log_unit(logical_cpus, CPUS_RANGE)
        self._uplink[:] = _log_unit(uplink_mbps, UPLINK_RANGE_MBPS)

    def encode(self, telemetry: Telemetry, knob_rows: FloatArray) -> FloatArray:
        """Encode one measurement; ``knob_rows`` (3, S, L) are the current knobs as `KnobDecoder.encode` gives them.

        Figures that are not numbers are read as zero: an observation is always finite.
        """
        measured = self._measured
        np.multiply(telemetry.slices, self._inverse_reference, out=measured)
        np.fmax(measured, 0.0, out=measured)
        np.log1p(measured, out=measured)
        np.multiply(measured, self._inverse_span, out=measured)
        np.minimum(measured, 1.0, out=measured)
        self._knobs[:] = knob_rows
        self._node[:] = telemetry.node[:, None]
        self._active[:] = telemetry.valid
        return self._features.transpose(2, 1, 0).copy()

    def to_dict(self) -> dict[str, Any]:
        """What a bundle stores to rebuild this encoder."""
        return {
            "features": list(FEATURES),
            "scale": {k: list(v) for k, v in TELEMETRY_SCALE.items()},
            **asdict(self.spec),
        }
