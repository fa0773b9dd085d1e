"""Knobs drawn at random: the least any agent has to beat, and a probe of everything else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.encoding import KnobDecoder
from slicepilot.env.knobs import NUM_KNOBS, Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry


class RandomAgent:
    """Uniform over the encoded knobs of every slice and lane, held for ``hold_periods`` control periods.

    A `slicepilot.agents.base.StochasticAgent`.
    """

    request_mcpu: FloatArray | None = None

    def __init__(self, hold_periods: int = 10, name: str = "random") -> None:
        if hold_periods < 1:
            raise ValueError(f"hold_periods = {hold_periods}; expected 1 or more")
        self.name, self.hold_periods = name, hold_periods

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start the sequence that belongs to the seed."""
        num_slices, lanes = context.promises.weight.shape
        self._decoder = KnobDecoder(slices)
        self.wanted: FloatArray = np.zeros((lanes, num_slices, NUM_KNOBS), np.float32)
        self.log_density: npt.NDArray[np.float64] = np.full(lanes, np.nan)
        self.held = False
        self._rng = np.random.default_rng(seed)
        self._periods = 0

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The draw that holds now."""
        self.held = self._periods % self.hold_periods != 0
        if not self.held:
            self.wanted = self._rng.uniform(-1.0, 1.0, self.wanted.shape).astype(np.float32)
            self._knobs, _ = self._decoder.decode(self.wanted)
        # The density of every axis is 1 / 2.
        self.log_density[:] = np.nan if self.held else -np.log(2.0) * self.wanted[0].size
        self._periods += 1
        return self._knobs
