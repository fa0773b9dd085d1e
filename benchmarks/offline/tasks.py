"""What the comparison learns from and how it judges: Pendulum-v1, and episodes of slices laid flat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from play import Act, play_pendulum, play_scenario

from slicepilot.agents.heuristics.registry import make
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.rollouts import play
from slicepilot.training.offline.data import discounts_of, open_dataset, select, slices_of, with_reward
from slicepilot.training.offline.memory import RewardScale
from slicepilot.training.recording.recording import on_declared_pods

JUDGE_SEED = 20_250_413
JUDGE_RUNS = 30
GAMMA = 0.9  # of slices, per quarter of a second


@dataclass(frozen=True)
class Task:
    """What is learned and how a policy for it is judged.

    Attributes:
        name: of the environment.
        episodes: observations (T + 1, D) and actions (T, K) in [-1, 1]; rewards as slicepilot scales them.
        gamma: discount per step.
        judge: mean return of a policy; low, high: the returns that count as 0 and 100.
    """

    name: str
    episodes: EpisodeSet
    gamma: float
    judge: Callable[[Act], float]
    low: float
    high: float

    def score(self, act: Act) -> float:
        """Normalised return."""
        return 100.0 * (self.judge(act) - self.low) / (self.high - self.low)


def pendulum(file: Path) -> Task:
    """The dataset of ``dataset.py``: 0 is what random actions return, 100 what the expert does."""
    arrays = np.load(file)
    found, seen, done = [], 0, 0
    for length in arrays["lengths"]:
        observations = arrays["observations"][seen : seen + length + 1]
        steps = slice(done, done + length)
        found.append(_episode(observations, arrays["actions"][steps], arrays["rewards"][steps]))
        seen, done = seen + length + 1, done + length
    low, high = float(arrays["random_return"]), float(arrays["expert_return"])

    def judge(act: Act) -> float:
        return float(play_pendulum(act, JUDGE_SEED).mean())

    return Task("Pendulum-v1", _scaled(found), 0.99, judge, low, high)


def recorded(dataset: str, behaviours: tuple[str, ...], reward: str, scenario: str) -> Task:
    """Recorded episodes, tables and actions laid flat, judged in the simulator.

    0 is what `random` earns there, 100 what the best of the other behaviours does. Only steps on which something was
    chosen are learned from: d3rlpy cannot be told that a draw which holds for ten periods was one choice.
    """
    episodes = with_reward(select(open_dataset(dataset), behaviours), reward)
    slices_of(episodes)
    flat = [step for episode in episodes for step in _choices(episode)]
    period_s = float(episodes.facts["period_s"])
    played = replace(Scenario.from_yaml(scenario), control_period_s=period_s)
    weights = RewardWeights.from_yaml(reward)

    def earned(behaviour: str) -> float:
        agent = on_declared_pods(make(behaviour, played.slice_set(), played.hardware_spec(), weights))
        return float(play(agent, played, JUDGE_RUNS, JUDGE_SEED, weights).reward.mean())

    def judge(act: Act) -> float:
        return float(play_scenario(act, played, weights, JUDGE_SEED, JUDGE_RUNS).mean())

    low = earned("random")
    high = max(earned(name) for name in episodes.behaviours if name != "random")
    return Task(scenario, _scaled(flat), float(discounts_of(episodes, GAMMA)[0]), judge, low, high)


def _choices(episode: Episode) -> Iterator[Episode]:
    """Steps that were decided anew, an episode each."""
    steps = len(episode)
    observations, actions = episode.observations.reshape(steps + 1, -1), episode.actions.reshape(steps, -1)
    held = np.asarray(episode.decisions.get("held", np.zeros(steps)), np.bool_)
    for t in np.flatnonzero(~held):
        yield _episode(observations[t : t + 2], actions[t : t + 1], episode.rewards[t : t + 1])


def _episode(observations: Any, actions: Any, rewards: Any) -> Episode:
    return Episode(observations, actions, rewards, actions, np.full(len(actions), np.nan), "any")


def _scaled(found: list[Episode]) -> EpisodeSet:
    """Rewards on the scale that slicepilot trains with."""
    scale = RewardScale.of(EpisodeSet(tuple(found)))
    return EpisodeSet(
        tuple(replace(e, rewards=((e.rewards - scale.mean) / scale.std).astype(np.float32)) for e in found)
    )
