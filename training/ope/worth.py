"""Is a policy worth more than the best of those who acted in the episodes that it was learned from?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from slicepilot.agents.base import Agent
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.data.intervals import Interval
from slicepilot.env.simulator.hardware import Hardware

from .comparison import ESTIMATORS, Judged, OnStep, compare
from .estimate import Estimate, plain_ends
from .fitted_q import FittedQConfig
from .logged import ACTIVE, arrivals

QUICK = FittedQConfig(updates=600)
"""A rougher fitted Q evaluation than `slicepilot dataset estimate` does, in less than half of the time."""


@dataclass(frozen=True)
class Difference:
    """An estimate less what the best behaviour earned, reward per control period, with its 95% interval.

    The interval adds both intervals as independent errors. It is infinite where one of them is not known.
    """

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or ``cannot be told apart``."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "cannot be told apart"

    @classmethod
    def of(cls, estimate: Estimate, best: Interval) -> Difference:
        """From an answered estimate."""
        value = estimate.value - best.value
        half = math.hypot((estimate.high - estimate.low) / 2, (best.high - best.low) / 2)
        return cls(value, value - half, value + half)


@dataclass(frozen=True)
class Worth:
    """What a policy is estimated to be worth beside the best of those who acted.

    Attributes:
        judged: every estimator's answer for the policy, and what the data cover.
        best: name of the behaviour with the largest mean reward, chosen in hindsight; ``best_reward`` is that.
        left_out: behaviours that nobody is held against, because they had fewer slices or other pods.
    """

    judged: Judged
    best: str
    best_reward: Interval
    left_out: tuple[str, ...] = ()

    def differences(self) -> dict[str, Difference]:
        """By estimator, of those that have a figure, in the order of `ESTIMATORS`."""
        own = self.judged.estimates
        return {
            name: Difference.of(own[name], self.best_reward)
            for name in ESTIMATORS
            if name in own and own[name].answered
        }

    @property
    def verdict(self) -> str:
        """All estimators' verdicts in one: what all that have a figure say, else that it cannot be told."""
        said = {difference.verdict for difference in self.differences().values()}
        return said.pop() if len(said) == 1 else "cannot be told apart"

    def to_json(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "unit": "reward per control period",
            "best": self.best,
            "best_reward": _plain(self.best_reward),
            "left_out": list(self.left_out),
            "estimates": {name: estimate.to_json() for name, estimate in self.judged.estimates.items()},
            "differences": {
                name: _plain(difference) | {"verdict": difference.verdict}
                for name, difference in self.differences().items()
            },
            "verdict": self.verdict,
            "coverage": self.judged.coverage.to_json(),
        }


def worth_of(
    agent: Agent,
    episodes: EpisodeSet,
    hardware: Hardware | None,
    config: FittedQConfig = QUICK,
    on_step: OnStep | None = None,
) -> Worth:
    """Estimate a policy against the best of those who acted.

    Args:
        agent: the policy, on the pods as declared.
        episodes: what it was learned from, in stretches that have rewards (`EpisodeSet.unbroken`).
        hardware: the node as identified, for the model; None leaves it out.
        config: of fitted Q evaluation.
        on_step: progress.

    Raises:
        ConfigError: as `slicepilot.training.ope.comparison.compare`.
    """
    found = compare(_busiest(episodes), [agent], hardware, config=config, on_step=on_step)
    best, reward = max(found.behaviours.items(), key=lambda item: item[1].value)
    left_out = tuple(name for name in episodes.behaviours if name not in found.behaviours)
    return Worth(found.policies[0], best, reward, left_out)


def _busiest(episodes: EpisodeSet) -> EpisodeSet:
    """The episodes with the most slices in them: who had but one of five earned more, and was no better for it."""
    there = [int((arrivals(episode)[..., ACTIVE] > 0.5).any(axis=0).sum()) for episode in episodes]
    most = max(there, default=0)
    own = tuple(episode for episode, count in zip(episodes, there, strict=True) if count == most)
    return EpisodeSet(own, episodes.facts)


def _plain(interval: Interval | Difference) -> dict[str, Any]:
    return {"value": interval.value, "ci95": plain_ends(interval.low, interval.high)}
