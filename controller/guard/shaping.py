"""The guard's rules on every decision, for many nodes at once, so that training has them as a live node does.

Bounds, floors, hysteresis, dwell, slew and oscillation, as `slicepilot.controller.guard.guard` applies them; nothing
that takes a policy's control away.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.compiled import kernel
from slicepilot.env.knobs import NUM_KNOBS, Knobs
from slicepilot.env.slices import SliceSet

from .config import GuardConfig
from .envelope import declare_knobs, flip_window_ns
from .knob_rules import note_change, oscillation, shape
from .records import KNOB, NEVER_NS, SLICE, Records


class Shaping:
    """Shapes the decisions for all lanes of a context, control period after control period."""

    def __init__(self, config: GuardConfig, slices: SliceSet, context: Context) -> None:
        lane = np.zeros(NUM_KNOBS * len(slices), KNOB)
        declare_knobs(lane, config, slices, context, "group")
        lane["changed_ns"], lane["last_held"], lane["last_value"], lane["extreme"] = NEVER_NS, np.nan, np.nan, np.nan
        lane["held"] = Knobs.none(len(slices)).values.ravel()
        self._period_ns = np.rint(1e9 * context.period_s).astype(np.int64)
        self._window_ns = np.asarray([flip_window_ns(config, period_s) for period_s in context.period_s.tolist()])
        self._knobs = np.repeat(lane[None], len(self._period_ns), axis=0)
        self._turns = np.full((*self._knobs.shape, config.oscillation.reversals), NEVER_NS)
        self._unused = np.zeros(1, SLICE)
        self._ticks = 0

    def __call__(self, values: FloatArray) -> None:
        """Shape knobs (3, S, L) in place; what is let through is taken to hold at the next call."""
        self._ticks += 1
        times = self._period_ns, self._window_ns, self._ticks
        _shape(self._knobs, self._turns, self._unused, *times, values)


@kernel
def _shape(
    knobs: Records,
    turns: npt.NDArray[np.int64],
    unused: Records,
    period_ns: npt.NDArray[np.int64],
    window_ns: npt.NDArray[np.float64],
    ticks: int,
    values: npt.NDArray[np.float32],
) -> None:
    num_slices = values.shape[1]
    for lane in range(len(knobs)):
        now_ns = ticks * period_ns[lane]
        for i in range(knobs.shape[1]):
            knob = knobs[lane, i]
            knob.wanted = values[knob.kind, i % num_slices, lane]
            note_change(knob, now_ns - period_ns[lane], turns[lane, i])
            shape(knob, unused[0], now_ns, float(period_ns[lane]))
            oscillation(knob, unused[0], now_ns, window_ns[lane], turns[lane, i])
            values[knob.kind, i % num_slices, lane] = knob.value
            knob.last_value = knob.held = values[knob.kind, i % num_slices, lane]
