"""Noise around another agent's choices, so that from its log more can be learnt than what it does anyway."""

from __future__ import annotations

import math
import zlib

import numpy as np
import numpy.typing as npt

from slicepilot.agents.base import Agent
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.encoding import KnobDecoder
from slicepilot.env.knobs import NUM_KNOBS, Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

STD, HOLD_PERIODS = 0.2, 10


class ExploringAgent:
    """Another agent's choice plus Gaussian noise on every axis of the action, decided once in ``hold_periods``.

    The other agent's decision is encoded (`slicepilot.env.encoding.KnobDecoder`), noise is added, and the sum is
    decoded. On the axis of a limit, where 1 means no limit, noise may also remove or introduce a limit. Nice is always
    of group scope; the other agent's nice of process scope, which does not move the weights of pods, counts as 0.

    A `slicepilot.agents.base.StochasticAgent`.

    Args:
        agent: whose choices.
        std: standard deviation on each axis (-1..1), independent between knobs, slices and lanes.
        hold_periods: control periods that a choice is held.
        name: else ``exploring-`` and the other's name.

    Raises:
        ValueError: no noise, or a choice held for less than a period.
    """

    def __init__(
        self, agent: Agent, std: float = STD, hold_periods: int = HOLD_PERIODS, name: str | None = None
    ) -> None:
        if not 0 < std < math.inf or hold_periods < 1:
            raise ValueError(f"std = {std}, hold_periods = {hold_periods}; expected more than 0, 1 or more")
        self.agent, self.std, self.hold_periods = agent, std, hold_periods
        self.name = name or f"exploring-{agent.name}"
        self.request_mcpu: FloatArray | None = agent.request_mcpu

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start a run. The noise depends on seed and name, so that two explorers with the same seed differ."""
        self.agent.reset(slices, context, seed)
        num_slices, lanes = context.promises.weight.shape
        self._decoder = KnobDecoder(slices)
        self.wanted: FloatArray = np.zeros((lanes, num_slices, NUM_KNOBS), np.float32)
        self.log_density: npt.NDArray[np.float64] = np.full(lanes, np.nan)
        self.held = False
        self._knobs = Knobs.none(num_slices, lanes)
        self._rng = np.random.default_rng([seed, zlib.crc32(self.name.encode())])
        self._periods = 0

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The choice that holds now."""
        chosen = self.agent.decide(telemetry, knobs)  # in every period: it may keep a memory
        self.held = self._periods % self.hold_periods != 0
        self._periods += 1
        if self.held:
            self.log_density[:] = np.nan
            return self._knobs
        mean = self._decoder.encode(chosen.between_groups()).transpose(2, 1, 0).astype(np.float64)
        self.wanted = (mean + self.std * self._rng.standard_normal(mean.shape)).astype(np.float32)
        self.log_density = gaussian_log_density(self.wanted, mean, self.std)
        self._knobs, _ = self._decoder.decode(self.wanted)
        return self._knobs


def gaussian_log_density(at: FloatArray, mean: npt.NDArray[np.float64], std: float) -> npt.NDArray[np.float64]:
    """Logarithm of the density of independent normal distributions with the same deviation, (L,), at (L, S, 3)."""
    distance = ((at - mean) / std).reshape(len(mean), -1)
    return np.asarray(-0.5 * np.square(distance).sum(axis=1) - distance.shape[1] * math.log(std * math.sqrt(2 * np.pi)))
