"""All estimators for several policies side by side, and how far off each was where the truth is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.clairvoyant import Clairvoyant
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import EpisodeSet, Floats
from slicepilot.data.intervals import LEVEL, RESAMPLES, Interval, mean, resample_indices
from slicepilot.data.intervals import interval as bootstrap
from slicepilot.env.simulator.hardware import Hardware

from .coverage import Coverage, LoggedSupport
from .decisions import TooFewDecisions, fitted_q, settings_of
from .estimate import Array, Estimate, percentile_ends, plain_ends, refusal
from .fitted_q import FittedQConfig
from .importance import importance, missed_settings
from .logged import Node, run_numbers, same_pods, watch
from .model_based import IdentifiedModel

MODEL, FITTED_Q, IMPORTANCE = "model-based", "fitted Q", "importance"
ESTIMATORS = (MODEL, FITTED_Q, IMPORTANCE)
MIN_RANKED = 3
OnStep = Callable[[str, float], None]
"""Called with what is being done and the share of all that is done, 0..1."""


@dataclass(frozen=True)
class Judged:
    """One policy: every estimator's answer, what the data cover, and what it really earned where that is known."""

    name: str
    estimates: Mapping[str, Estimate]
    coverage: Coverage
    truth: Interval | None = None


@dataclass(frozen=True)
class Score:
    """How an estimator did on policies whose reward is known.

    Attributes:
        answered: policies that it gave a figure for.
        error: root mean square difference to what was earned; NaN without any.
        bias: mean difference.
        covered: share of intervals that hold what was earned; NaN where no interval is known.
        rank: Spearman's correlation with a percentile bootstrap interval over policies; None for fewer than
            `MIN_RANKED` policies.
    """

    answered: int
    error: float
    bias: float
    covered: float
    rank: Interval | None

    def to_json(self) -> dict[str, Any]:
        """The same for JSON."""
        if not self.answered:
            return {"answered": 0}
        rank = self.rank and {"value": self.rank.value, "ci95": [self.rank.low, self.rank.high]}
        return {
            "answered": self.answered,
            "error": self.error,
            "bias": self.bias,
            "covered": None if np.isnan(self.covered) else self.covered,
            "spearman": rank,
        }


@dataclass(frozen=True)
class Comparison:
    """Several policies on the same data; ``behaviours`` are mean rewards of those who acted."""

    policies: tuple[Judged, ...]
    behaviours: Mapping[str, Interval]

    def score(self, estimator: str, resamples: int = RESAMPLES, seed: int = 0) -> Score:
        """How an estimator did on the policies whose truth is known."""
        known = [
            (policy.estimates[estimator], policy.truth)
            for policy in self.policies
            if policy.truth is not None and estimator in policy.estimates and policy.estimates[estimator].answered
        ]
        said = np.asarray([estimate.value for estimate, _ in known])
        true = np.asarray([truth.value for _, truth in known])
        inside = [own.low <= truth.value <= own.high for own, truth in known if np.isfinite(own.high - own.low)]
        if not known:
            return Score(0, np.nan, np.nan, np.nan, None)
        return Score(
            answered=len(known),
            error=float(np.sqrt(np.mean((said - true) ** 2))),
            bias=float(np.mean(said - true)),
            covered=float(np.mean(inside)) if inside else np.nan,
            rank=rank_correlation(said, true, resamples, seed) if len(known) >= MIN_RANKED else None,
        )

    @property
    def has_truth(self) -> bool:
        """Whether any policy's reward is known."""
        return any(policy.truth is not None for policy in self.policies)

    def to_json(self) -> dict[str, Any]:
        """All of it for JSON."""
        document: dict[str, Any] = {
            "unit": "reward per control period",
            "behaviours": {name: _plain(own) for name, own in self.behaviours.items()},
            "policies": [
                {
                    "name": policy.name,
                    "estimates": {name: estimate.to_json() for name, estimate in policy.estimates.items()},
                    "coverage": policy.coverage.to_json(),
                    "truth": policy.truth and _plain(policy.truth),
                }
                for policy in self.policies
            ],
        }
        if self.has_truth:
            document["scores"] = {name: self.score(name).to_json() for name in ESTIMATORS}
        return document


def compare(
    episodes: EpisodeSet,
    agents: Sequence[Agent],
    hardware: Hardware | None,
    truth: Mapping[str, Interval] | None = None,
    config: FittedQConfig | None = None,
    on_step: OnStep | None = None,
) -> Comparison:
    """Estimate what several policies would have earned, by every estimator that can say something.

    Args:
        episodes: what was logged.
        agents: the policies, with names that differ.
        hardware: the node as identified, for the model; None leaves it out.
        truth: mean reward of policies that were really run, by name.
        config: of fitted Q evaluation.
        on_step: progress.

    Raises:
        ConfigError: episodes that no policy can be held against; a policy that draws, sees the future or counts on CPU
            requests of its own.
    """
    told = on_step or (lambda what, share: None)
    node = Node.of(episodes)
    episodes = same_pods(episodes, node)
    for agent in agents:
        _check(agent)
    targets: dict[str, list[Floats]] = {}
    for number, agent in enumerate(agents):
        told(f"watching: {agent.name}", 0.1 * number / len(agents))
        targets[agent.name] = watch(agent, episodes.episodes, node)
    model = None
    if hardware is not None:  # first of all, because it may refuse the episodes
        said = "model: those who acted"
        model = IdentifiedModel(episodes, node, hardware, on_progress=lambda share: told(said, 0.1 + 0.1 * share))
    fitted = _fitted_q(episodes, node, targets, config, lambda share: told("fitted Q evaluation", 0.2 + 0.5 * share))
    told("what the data cover", 0.7)
    support = LoggedSupport(episodes, node.slices.names, node.period_s)
    missed = missed_settings(
        episodes, settings_of(episodes), lambda share: told("importance: known settings", 0.72 + 0.08 * share)
    )
    judged = []
    for number, agent in enumerate(agents):

        def one(share: float, number: int = number, name: str = agent.name) -> None:
            told(f"model: {name}", 0.8 + 0.2 * (number + share) / len(agents))

        one(0.0)
        if model is not None:
            model.on_progress = one
        estimates = {FITTED_Q: fitted[agent.name], IMPORTANCE: importance(episodes, targets[agent.name], missed=missed)}
        visited = None
        if model is not None:
            estimates[MODEL], visited = model.estimate(agent)
        coverage = support.of(targets[agent.name], visited)
        judged.append(Judged(agent.name, estimates, coverage, (truth or {}).get(agent.name)))
    return Comparison(tuple(judged), rewards_of(episodes))


def _fitted_q(
    episodes: EpisodeSet,
    node: Node,
    targets: Mapping[str, Sequence[Floats]],
    config: FittedQConfig | None,
    on_progress: Callable[[float], None],
) -> dict[str, Estimate]:
    """Estimates by fitted Q evaluation; refusals where the data have no two decisions in a row."""
    try:
        return fitted_q(episodes, node, targets, config, on_progress)
    except TooFewDecisions as error:
        why = (
            f"it learns from decisions that another one follows, and the data have {error.most} in a row at most: "
            "episodes are cut where nothing was measured"
        )
        return dict.fromkeys(targets, refusal(why))


def _check(agent: Agent) -> None:
    if isinstance(agent, Clairvoyant):
        raise ConfigError(
            f"agent = {agent.name!r}: looks into the simulator's future; accepted: ones that decide by what they see"
        )
    if agent.request_mcpu is not None:
        raise ConfigError(
            f"agent = {agent.name!r}: counts on CPU requests of its own, of which the data say nothing; "
            "accepted: policies on the pods as declared"
        )


def rewards_of(episodes: EpisodeSet) -> dict[str, Interval]:
    """Mean reward a period of everyone who acted; its bootstrap interval over runs, infinite for a single one.

    Runs are episodes, or all stretches of one that was cut where nothing was measured.
    """
    found = {}
    for name in episodes.behaviours:
        own = episodes.of(name)
        runs: dict[int, list[Floats]] = {}
        for run, episode in zip(run_numbers(own).tolist(), own, strict=True):
            if len(episode):
                runs.setdefault(run, []).append(episode.rewards)
        means = [float(np.concatenate(rewards).mean()) for rewards in runs.values()]
        if means:
            found[name] = bootstrap(means, mean) if len(means) > 1 else Interval(means[0], -np.inf, np.inf)
    return found


def rank_correlation(said: Array, true: Array, resamples: int = RESAMPLES, seed: int = 0) -> Interval | None:
    """Spearman's rank correlation (N,) with a percentile interval from policies drawn with replacement.

    Draws in which all policies are the same one say nothing and are left out. None where either column does not vary.
    """
    drawn = [_spearman(said[index], true[index]) for index in resample_indices(len(said), resamples, seed)]
    told = np.asarray([value for value in drawn if np.isfinite(value)])
    value = _spearman(said, true)
    return Interval(value, *percentile_ends(told, LEVEL)) if np.isfinite(value) else None


def _spearman(said: npt.NDArray[np.float64], true: npt.NDArray[np.float64]) -> float:
    """Pearson's correlation of mean ranks; NaN where one of them does not vary."""
    ranks = [stats.rankdata(column) for column in (said, true)]
    centred = [rank - rank.mean() for rank in ranks]
    size = np.sqrt(np.square(centred[0]).sum() * np.square(centred[1]).sum())
    return float(centred[0] @ centred[1] / size) if size > 0 else float("nan")


def _plain(interval: Interval) -> dict[str, Any]:
    return {"value": interval.value, "ci95": plain_ends(interval.low, interval.high)}
