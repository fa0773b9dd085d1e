"""Estimates for several policies side by side, and against the best behaviour of the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.planners.clairvoyant import Clairvoyant
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import EpisodeSet, Floats
from slicepilot.data.intervals import Interval, mean
from slicepilot.data.intervals import interval as bootstrap
from slicepilot.env.simulator.hardware import Hardware

from .coverage import Coverage, LoggedSupport
from .estimate import Estimate, finite_ends
from .logged import ACTIVE, Node, arrivals, run_numbers, same_pods, watch
from .model_based import IdentifiedModel

MODEL = "model-based"
"""The estimator's name in JSON."""
UNCERTAIN = "cannot be told apart"
OnStep = Callable[[str, float], None]
"""Called with the name of the current step and the share of all work that is done, 0..1."""


@dataclass(frozen=True)
class PolicyEstimate:
    """One policy: its estimated reward, and how well the data cover it."""

    name: str
    estimate: Estimate
    coverage: Coverage


@dataclass(frozen=True)
class Comparison:
    """Several policies on the same data; ``behaviours`` are mean rewards of the policies that were logged."""

    policies: tuple[PolicyEstimate, ...]
    behaviours: Mapping[str, Interval]

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "unit": "reward per control period",
            "behaviours": {name: _plain(own) for name, own in self.behaviours.items()},
            "policies": [
                {
                    "name": policy.name,
                    "estimates": {MODEL: policy.estimate.to_json()},
                    "coverage": policy.coverage.to_json(),
                }
                for policy in self.policies
            ],
        }


def compare(
    episodes: EpisodeSet, agents: Sequence[Agent], hardware: Hardware, on_step: OnStep | None = None
) -> Comparison:
    """Estimate what several policies, with names that differ, would have earned on a node as identified.

    Raises:
        ConfigError: episodes without the needed facts or telemetry; a policy that draws at random, sees the future or
            needs CPU requests of its own.
    """
    report = on_step or (lambda step, share: None)
    node = Node.of(episodes)
    episodes = same_pods(episodes, node)
    for agent in agents:
        _check(agent)
    targets: dict[str, list[Floats]] = {}
    for number, agent in enumerate(agents):
        report(f"deciding: {agent.name}", 0.1 * number / len(agents))
        targets[agent.name] = watch(agent, episodes.episodes, node)
    model = IdentifiedModel(
        episodes, node, hardware, on_progress=lambda share: report("model: logged policies", 0.1 + 0.3 * share)
    )
    report("coverage of the data", 0.4)
    support = LoggedSupport(episodes, node.slices.names, node.period_s)
    policies = []
    for number, agent in enumerate(agents):
        model.on_progress = lambda share, number=number, name=agent.name: report(
            f"model: {name}", 0.5 + 0.5 * (number + share) / len(agents)
        )
        estimate, visited = model.estimate(agent)
        policies.append(PolicyEstimate(agent.name, estimate, support.of(targets[agent.name], visited)))
    return Comparison(tuple(policies), mean_rewards(episodes))


def _check(agent: Agent) -> None:
    if isinstance(agent, Clairvoyant):
        raise ConfigError(
            f"agent = {agent.name!r}: sees the simulator's future; expected a policy that decides by telemetry"
        )
    if agent.request_mcpu is not None:
        raise ConfigError(
            f"agent = {agent.name!r}: needs CPU requests of its own, which the data do not cover; expected a policy "
            "that runs on the pods as declared"
        )


def mean_rewards(episodes: EpisodeSet) -> dict[str, Interval]:
    """Mean reward per period of every logged policy, with its bootstrap interval over runs, infinite for a single run.

    A run is an episode, or all stretches of an episode that was cut where nothing was measured.
    """
    rewards = {}
    for name in episodes.behaviours:
        own = episodes.of(name)
        runs: dict[int, list[Floats]] = {}
        for run, episode in zip(run_numbers(own).tolist(), own, strict=True):
            if len(episode):
                runs.setdefault(run, []).append(episode.rewards)
        means = [float(np.concatenate(parts).mean()) for parts in runs.values()]
        if means:
            rewards[name] = bootstrap(means, mean) if len(means) > 1 else Interval(means[0], -np.inf, np.inf)
    return rewards


@dataclass(frozen=True)
class Improvement:
    """A policy's estimate beside the best behaviour of the data.

    Attributes:
        policy: its estimate, and how well the data cover it.
        best: name of the behaviour with the largest mean reward, chosen in hindsight; ``best_reward`` is that.
        left_out: behaviours that are not compared, because they had fewer slices or other pods.
    """

    policy: PolicyEstimate
    best: str
    best_reward: Interval
    left_out: tuple[str, ...] = ()

    @property
    def difference(self) -> Interval | None:
        """The estimate less the best reward, reward per control period; None where there is no estimate.

        Its interval adds both intervals as independent errors, and is infinite where either is not known.
        """
        estimate, best = self.policy.estimate, self.best_reward
        if not estimate.answered:
            return None
        value = estimate.value - best.value
        half = math.hypot((estimate.high - estimate.low) / 2, (best.high - best.low) / 2)
        return Interval(value, value - half, value + half)

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or ``cannot be told apart``, also where there is no estimate."""
        own = self.difference
        if own is None or not own.excludes_zero:
            return UNCERTAIN
        return "better" if own.value > 0 else "worse"

    def to_json(self) -> dict[str, Any]:
        """The same for JSON."""
        own = self.difference
        return {
            "unit": "reward per control period",
            "best": self.best,
            "best_reward": _plain(self.best_reward),
            "left_out": list(self.left_out),
            "estimates": {MODEL: self.policy.estimate.to_json()},
            "differences": {} if own is None else {MODEL: _plain(own) | {"verdict": self.verdict}},
            "verdict": self.verdict,
            "coverage": self.policy.coverage.to_json(),
        }


def improvement_over_best(
    agent: Agent, episodes: EpisodeSet, hardware: Hardware, on_step: OnStep | None = None
) -> Improvement:
    """Estimate a policy against the best behaviour of the data that it was learned from.

    Only episodes with the most slices are compared: a behaviour with one slice of five earns more, and is no better.

    Episodes are stretches that have rewards (`EpisodeSet.unbroken`), and the policy runs on the pods as declared.

    Raises:
        ConfigError: as `compare`.
    """
    slices = [int((arrivals(episode)[..., ACTIVE] > 0.5).any(axis=0).sum()) for episode in episodes]
    most = max(slices, default=0)
    busiest = tuple(episode for episode, count in zip(episodes, slices, strict=True) if count == most)
    compared = compare(EpisodeSet(busiest, episodes.facts), [agent], hardware, on_step)
    best, reward = max(compared.behaviours.items(), key=lambda item: item[1].value)
    left_out = tuple(name for name in episodes.behaviours if name not in compared.behaviours)
    return Improvement(compared.policies[0], best, reward, left_out)


def _plain(interval: Interval) -> dict[str, Any]:
    return {"value": interval.value, "ci95": finite_ends(interval.low, interval.high)}
