"""Knobs that are drawn at random, so that from a log more can be learnt than what an agent does anyway."""

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


class RandomAgent:
    """Uniform over the encoded knobs of every slice and lane, held for ``hold_periods`` control periods.

    The least that any agent has to beat, and a probe of everything else. A `slicepilot.agents.base.StochasticAgent`.

    Raises:
        ValueError: a draw held for less than a period.
    """

    request_mcpu: FloatArray | None = None

    def __init__(self, hold_periods: int = HOLD_PERIODS, name: str = "random") -> None:
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
        self._knobs = Knobs.none(num_slices, lanes)
        self._rng = np.random.default_rng(self._entropy(seed))
        self._periods = 0

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The draw that holds now."""
        self.held = self._periods % self.hold_periods != 0
        self._periods += 1
        if self.held:
            self.log_density[:] = np.nan
            return self._knobs
        self._draw(knobs)
        self._knobs, _ = self._decoder.decode(self.wanted)
        return self._knobs

    def _entropy(self, seed: int) -> int | list[int]:
        return seed

    def _draw(self, chosen: Knobs) -> None:
        """Set ``wanted`` and its ``log_density``: that of every axis is 1 / 2."""
        self.wanted = self._rng.uniform(-1.0, 1.0, self.wanted.shape).astype(np.float32)
        self.log_density[:] = -np.log(2.0) * self.wanted[0].size


class ExploringAgent(RandomAgent):
    """Another agent's choice plus Gaussian noise on every axis of the action, decided once in ``hold_periods``.

    The other agent's decision is encoded (`slicepilot.env.encoding.KnobDecoder`), noise is added, and the sum is
    decoded. On the axis of a limit, where 1 means no limit, noise may also remove or introduce a limit. Nice is always
    of group scope; the other agent's nice of process scope, which does not move the weights of pods, counts as 0.

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
        if not 0 < std < math.inf:
            raise ValueError(f"std = {std}; expected more than 0")
        super().__init__(hold_periods, name or f"exploring-{agent.name}")
        self.agent, self.std, self.request_mcpu = agent, std, agent.request_mcpu

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start a run. The noise depends on seed and name, so that two explorers with the same seed differ."""
        self.agent.reset(slices, context, seed)
        super().reset(slices, context, seed)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The choice that holds now; the other agent decides in every period, since it may keep a memory."""
        return super().decide(telemetry, self.agent.decide(telemetry, knobs))

    def _entropy(self, seed: int) -> int | list[int]:
        return [seed, zlib.crc32(self.name.encode())]

    def _draw(self, chosen: Knobs) -> None:
        mean = self._decoder.encode(chosen.between_groups()).transpose(2, 1, 0).astype(np.float64)
        self.wanted = (mean + self.std * self._rng.standard_normal(mean.shape)).astype(np.float32)
        distance = ((self.wanted - mean) / self.std).reshape(len(mean), -1)
        normaliser = distance.shape[1] * math.log(self.std * math.sqrt(2 * np.pi))
        self.log_density[:] = -0.5 * np.square(distance).sum(axis=1) - normaliser
