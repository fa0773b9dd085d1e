"""Model-based estimates: the policy runs in the identified simulator, under the measured loads.

The model has errors, whose effect on the reward is known for the logged behaviours: their logged actions are replayed
under the loads of their own episodes, and the simulated reward is compared with the logged reward. A straight line
through these pairs maps the model's figures to real rewards. Its slope is drawn towards 1, the slope of a model with a
constant error, with the weight of one more pair: pairs are few, and estimated policies may lie beyond them.

Behaviours that do nearly the same count as a single pair, because they carry the same information. The distance of each
pair from the line through the others is the model's error on policies unlike all that acted, which widens the interval
beside a bootstrap of episodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.agents.base import Agent
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.encoding import KnobDecoder, ObservationEncoder
from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.backend import SimulatorBackend
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry
from slicepilot.training.evaluation.rollouts import collect_rollout

from .coverage import APART_S
from .estimate import Array, Estimate, bootstrap_ratio, episodes_that_count, widened
from .logged import Node, alike, run_numbers
from .measured_loads import MeasuredLoads

SPREAD = 0.1


class Replayed:
    """An agent that replays logged actions, an episode in each lane, to measure the model's errors."""

    name = "replayed"
    request_mcpu: FloatArray | None = None

    def __init__(self, episodes: Sequence[Episode], node: Node) -> None:
        longest = max(map(len, episodes))
        padded = [np.pad(e.actions, ((0, longest - len(e)), (0, 0), (0, 0)), mode="edge") for e in episodes]
        self._actions = np.stack(padded, axis=1)
        self._decoder = node.decoder

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """From the first action."""
        self._step = 0

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The next recorded action."""
        self._step += 1
        return self._decoder.decode(self._actions[self._step - 1])[0]


class Witness:
    """Wraps an agent and keeps its observations every so many control periods."""

    request_mcpu: FloatArray | None = None

    def __init__(self, agent: Agent, every: int) -> None:
        self.agent, self.every, self.name = agent, every, agent.name

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start a run."""
        self.agent.reset(slices, context, seed)
        self._encoder, self._decoder = ObservationEncoder(context), KnobDecoder(slices)
        self._seen: list[FloatArray] = []
        self._periods = 0

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The decision of the agent."""
        if self._periods % self.every == 0:
            self._seen.append(self._encoder.encode(telemetry, self._decoder.encode(knobs)))
        self._periods += 1
        return self.agent.decide(telemetry, knobs)

    @property
    def observations(self) -> FloatArray:
        """Those of the last run, (N * L, S, D)."""
        return np.concatenate(self._seen)


@dataclass(frozen=True)
class Calibration:
    """Maps the model's reward per period to the real reward: intercept + slope x.

    Attributes:
        intercept, slope: of the line.
        error: root mean square by which groups of behaviours are missed, each by the line through the others. Of a
            single group, by how much the model misses it without the line.
        groups: how many there are.
        by_behaviour: what the model says of each minus what it earned, without the line.
    """

    intercept: float
    slope: float
    error: float
    groups: int
    by_behaviour: dict[str, float]

    @classmethod
    def of(cls, said: Array, earned: Array, names: Sequence[str], groups: npt.NDArray[np.int64]) -> Calibration:
        """From pairs (B,) of behaviours, each with the number of its group."""
        off = dict(zip(names, map(float, said - earned), strict=True))
        x, y = (np.asarray([column[groups == item].mean() for item in np.unique(groups)]) for column in (said, earned))
        missed = x - y
        if len(x) > 1:
            lines = [line(np.delete(x, g), np.delete(y, g)) for g in range(len(x))]
            missed = np.asarray([a + slope * x[g] - y[g] for g, (a, slope) in enumerate(lines)])
        return cls(*line(x, y), float(np.sqrt(np.mean(np.square(missed)))), len(x), off)

    def __call__(self, said: Array) -> Array:
        """The model's reward on the scale of real rewards."""
        return self.intercept + self.slope * said


def line(said: Array, earned: Array) -> tuple[float, float]:
    """Intercept and slope by least squares with a ridge towards a slope of 1, for pairs (G,).

    The ridge weighs as much as the mean pair, and as a pair that is `SPREAD` away from the middle.
    """
    centred = said - said.mean()
    spread = float(centred @ centred)
    ridge = spread / len(said) + SPREAD**2
    slope = max((float(centred @ earned) + ridge) / (spread + ridge), 0.0)
    return float(earned.mean() - slope * said.mean()), slope


class IdentifiedModel:
    """The simulator as a model of the node that episodes were logged on.

    Args:
        episodes: with telemetry, at least one step each.
        on_progress: called with the share of the current run that is done, 0..1; may be replaced between runs.

    Attributes:
        calibration: None where no step was measured in full.

    Raises:
        ConfigError: telemetry was not kept.
    """

    def __init__(
        self,
        episodes: EpisodeSet,
        node: Node,
        hardware: Hardware,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        if any(episode.telemetry is None for episode in episodes):
            raise ConfigError("telemetry = None: expected episodes that kept it, whose loads can be played again")
        self.episodes, self.node, self.hardware = episodes, node, hardware
        self._lengths = np.asarray([len(episode) for episode in episodes])
        longest = int(self._lengths.max())
        self._all_steps = np.arange(longest)[:, None] < self._lengths
        # Where a slice was not measured the logged reward is of the others alone, and the model's would be of all.
        self._whole_steps = self._all_steps & np.stack([_measured(e, longest) for e in episodes], axis=1)
        self.on_progress = on_progress
        self.calibration = self._calibration() if self._whole_steps.any() else None

    def earned(self, agent: Agent, counted: npt.NDArray[np.bool_] | None = None) -> Array:
        """Sums of the agent's rewards over the length of each episode, (E,), or over some steps (T, E) of them."""
        loads = MeasuredLoads(self.episodes.episodes, self.node, self.hardware)
        backend = SimulatorBackend(loads, len(self.episodes))
        try:
            periods = iter(range(1, len(self._all_steps) + 1))

            def on_period() -> None:
                if self.on_progress is not None:
                    self.on_progress(next(periods) / len(self._all_steps))

            rewards = collect_rollout(agent, backend, 0, self.node.weights, on_period).reward
        finally:
            backend.close()
        return np.asarray(np.sum(rewards * (self._all_steps if counted is None else counted), axis=0, dtype=np.float64))

    def estimate(self, agent: Agent) -> tuple[Estimate, FloatArray]:
        """Mean reward per period on the scale of real rewards; and observations (N, S, D) of the agent's runs."""
        witness = Witness(agent, max(1, round(APART_S / self.node.period_s)))
        earned = self.earned(witness)
        scale = self.calibration
        if scale is None:
            steps = int(self._lengths.sum())
            why = (
                f"its errors are not known: everything was measured in 0 of {steps:,} steps, and it can be "
                "held against such steps alone"
            )
            return Estimate(math.nan, math.nan, math.nan, {}, why), witness.observations
        runs = run_numbers(self.episodes)
        by_run, lengths = np.bincount(runs, earned), np.bincount(runs, self._lengths)
        draws = scale(bootstrap_ratio(by_run, lengths))
        said = float(earned.sum() / self._lengths.sum())
        facts: dict[str, Any] = {
            "held_out_error": scale.error,
            "uncalibrated": said,
            "slope": scale.slope,
            "error_by_behaviour": scale.by_behaviour,
        }
        value = scale.intercept + scale.slope * said
        independent = episodes_that_count(lengths)
        estimate = widened(value, draws, independent, scale.error, max(scale.groups - 1, 1), facts)
        return estimate, witness.observations

    def _calibration(self) -> Calibration:
        """Calibrate on the logged behaviours, in steps in which everything was measured."""
        whole = self._whole_steps
        said = self.earned(Replayed(self.episodes.episodes, self.node), whole)
        did = np.asarray(
            [e.rewards[whole[: len(e), n]].sum(dtype=np.float64) for n, e in enumerate(self.episodes)], np.float64
        )
        actors = np.asarray([episode.behaviour for episode in self.episodes])
        steps = whole.sum(axis=0)
        known = [bool(steps[actors == name].any()) for name in self.episodes.behaviours]
        names = [name for name, some in zip(self.episodes.behaviours, known, strict=True) if some]
        pairs = [[sums[actors == name].sum() / steps[actors == name].sum() for name in names] for sums in (said, did)]
        return Calibration.of(np.asarray(pairs[0]), np.asarray(pairs[1]), names, alike(self.episodes)[known])


def _measured(episode: Episode, longest: int) -> npt.NDArray[np.bool_]:
    """Whether every slice with traffic was measured in the period after each decision, (longest,)."""
    result = np.ones(longest, np.bool_)
    if episode.unmeasured is not None:
        result[: len(episode)] = ~episode.unmeasured[1:].any(axis=1)
    return result
