"""A judged agent over many scenarios: distributions of ratios, so that no mean hides a bad scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slicepilot.data.intervals import Array, Interval, crossed_interval, interval, median

from .comparison import ScenarioResult, finite

BEST_FIXED = "best fixed"
GREEDY = "greedy"
Figures = dict[str, float]
# Broken seconds below this share of a run count as this much, or a ratio of next to nothing would say much.
FLOOR_SHARE = 2e-3
TIE_RATIO = 1.02
"""Ratios up to this count as ties."""
LEAST_SEEDS = 3
"""Fewer bundles tell next to nothing about training seeds."""


@dataclass(frozen=True)
class AgainstRival:
    """One subject against one rival over N scenarios.

    Attributes:
        rival: name, or `BEST_FIXED`: whichever fixed setting is best in each scenario, in hindsight.
        ratios: (N,), broken seconds of the subject over the rival's, weighted by slice, means over seeds.
        typical: their median with a bootstrap interval over scenarios.
        gains: (N,), return of the subject minus the rival's, means over seeds.
    """

    subject: str
    rival: str
    scenarios: tuple[str, ...]
    ratios: Array
    typical: Interval
    gains: Array

    @property
    def tie_or_better(self) -> float:
        """Share of scenarios in which the subject is better or as good."""
        return float((self.ratios <= TIE_RATIO).mean())

    @property
    def geometric_mean(self) -> float:
        """Of the ratios: a tenth in one scenario outweighs ten times as much in another."""
        return float(np.exp(np.log(self.ratios).mean()))

    @property
    def quartiles(self) -> tuple[float, float]:
        """Between which the middle half of the ratios lies."""
        low, high = np.quantile(self.ratios, [0.25, 0.75])
        return float(low), float(high)

    @property
    def worst(self) -> tuple[str, float]:
        """The scenario with the highest ratio."""
        at = int(self.ratios.argmax())
        return self.scenarios[at], float(self.ratios[at])

    def to_json(self) -> dict[str, object]:
        """As ``slicepilot evaluate --suite`` prints it."""
        name, ratio = self.worst
        return {
            "agent": self.subject,
            "rival": self.rival,
            "median_ratio": self.typical.value,
            "ci95": [self.typical.low, self.typical.high],
            "geometric_mean_ratio": self.geometric_mean,
            "quartiles": list(self.quartiles),
            "worst": {"scenario": name, "ratio": ratio},
            "level_ratio": self.tie_or_better,
            "median_return_gain": finite(float(np.median(self.gains))),
        }


@dataclass(frozen=True)
class OverTrainingSeeds:
    """Policies that differ in their training seed alone, together against one rival over N scenarios.

    Attributes:
        subjects: names of the R policies.
        rival: as of `AgainstRival`.
        typical: median over scenarios of the ratio, which is a mean over policies; the interval is one of other seeds
            and other scenarios alike, see `slicepilot.data.intervals.crossed_interval`.
        medians: (R,), each policy's own median ratio.
    """

    subjects: tuple[str, ...]
    rival: str
    typical: Interval
    medians: Array

    def to_json(self) -> dict[str, object]:
        """As ``slicepilot evaluate --suite`` prints it."""
        return {
            "agents": list(self.subjects),
            "rival": self.rival,
            "median_ratio": self.typical.value,
            "ci95": [self.typical.low, self.typical.high],
            "medians": self.medians.tolist(),
        }


def over_training_seeds(results: Sequence[ScenarioResult], subjects: Sequence[str]) -> list[OverTrainingSeeds]:
    """Policies of one training against all that are neither fixed nor learned, and the best fixed setting.

    None for fewer than `LEAST_SEEDS` policies or two scenarios.
    """
    if len(subjects) < LEAST_SEEDS or len(results) < 2:
        return []
    first = results[0]
    learned = {agent.name for agent in first.rivals if agent.role == "learned"}
    each = [[row for row in against_rivals(results, name) if row.rival not in learned] for name in subjects]
    pooled = []
    for same_rival in zip(*each, strict=True):
        ratios = np.stack([row.ratios for row in same_rival])
        typical = crossed_interval(ratios, median, first.resamples, first.level, first.seed)
        pooled.append(OverTrainingSeeds(tuple(subjects), same_rival[0].rival, typical, median(ratios)))
    return pooled


def heuristics_compared(results: Sequence[ScenarioResult]) -> list[AgainstRival]:
    """Every heuristic that is not judged, against the best fixed setting and greedy, where these ran."""
    first = results[0]
    rules = [agent.name for agent in first.rivals if agent.role == "adaptive" and agent.name not in first.subjects]
    return [row for rule in rules for row in against_rivals(results, rule) if row.rival in {BEST_FIXED, GREEDY}]


def against_rivals(results: Sequence[ScenarioResult], subject: str) -> list[AgainstRival]:
    """A subject against the best fixed setting of each scenario, if any played, then against all that are not fixed."""
    first = results[0]
    rivals = [BEST_FIXED] if first.best_fixed else []
    rivals += [agent.name for agent in first.rivals if agent.role != "fixed" and agent.name != subject]
    return [_against(results, subject, rival) for rival in rivals]


def summary(results: Sequence[ScenarioResult]) -> dict[str, dict[str, Figures | None]]:
    """Every agent over all scenarios: broken seconds over the best fixed setting's and over greedy's, gap to the bound.

    As ``slicepilot evaluate --suite --json`` prints it: median, worst and number of scenarios won; None for a rival
    that did not play, and for a bound that nobody computed. A setting in shares of the node that is the same as another
    one on some of the nodes plays there under one name; who did not play everywhere is left out.
    """
    outcome: dict[str, dict[str, Figures | None]] = {}
    for agent in results[0].rivals:
        if not all(_ran(result, agent.name) for result in results):
            continue
        gaps = [result.gap_to_bound_pct(agent.name) for result in results]
        known = [gap for gap in gaps if gap is not None]
        outcome[agent.name] = {
            "over_best_fixed": _ratios(results, agent.name, BEST_FIXED) if all(r.best_fixed for r in results) else None,
            "over_greedy": _ratios(results, agent.name, GREEDY) if all(_ran(r, GREEDY) for r in results) else None,
            "gap_to_bound_pct": {"median": float(np.median(known))} if known else None,
        }
    return outcome


def _ran(result: ScenarioResult, name: str) -> bool:
    return any(agent.name == name for agent in result.agents)


def _ratios(results: Sequence[ScenarioResult], subject: str, rival: str) -> Figures:
    ratios = _against(results, subject, rival).ratios
    return {"median": float(np.median(ratios)), "worst": float(ratios.max()), "wins": int((ratios < 1.0).sum())}


def _against(results: Sequence[ScenarioResult], subject: str, rival: str) -> AgainstRival:
    ratios, gains = [], []
    for result in results:
        other = result.best_fixed if rival == BEST_FIXED else result.agent(rival)
        assert other is not None, "all scenarios are played by the same agents"
        me, floor_s = result.agent(subject), FLOOR_SHARE * result.duration_s
        mine, theirs = (max(float(a.scores["sla_violation_s"].mean()), floor_s) for a in (me, other))
        ratios.append(mine / theirs)
        gains.append(float(me.scores["return"].mean() - other.scores["return"].mean()))
    outcome = np.asarray(ratios, np.float64)
    first = results[0]
    return AgainstRival(
        subject,
        rival,
        tuple(result.scenario for result in results),
        outcome,
        interval(outcome, median, first.resamples, first.level, first.seed),
        np.asarray(gains, np.float64),
    )
