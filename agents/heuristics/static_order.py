"""CPU weights in the order of what slices weigh: the simplest control that protects those that matter."""

from __future__ import annotations

import numpy as np

from slicepilot.env.arrays import BoolArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import NICE, Knobs
from slicepilot.env.promises import static_order
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from .fixed import FixedAgent


class StaticOrder(FixedAgent):
    """No limits, and the nice levels of `slicepilot.env.promises.static_order`; they change as slices come and go."""

    def __init__(self) -> None:
        super().__init__("static-order")

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Take over the weights."""
        super().reset(slices, context, seed)
        self._weight = context.promises.weight
        self._bounds = slices.bound("nice", 0), slices.bound("nice", 1)
        self._valid: BoolArray = np.zeros(self._weight.shape, np.bool_)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The same knobs until a slice comes or goes."""
        if not np.array_equal(telemetry.valid, self._valid):
            self._valid = telemetry.valid.copy()
            self._knobs = self._knobs.copy()
            self._knobs.values[NICE] = np.clip(static_order(self._weight, self._valid), *self._bounds)
        return self._knobs
