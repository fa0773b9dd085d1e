"""An agent over many scenarios: shares of relations, and medians and worst of ratios: no mean hides a bad scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from slicepilot.data.intervals import Array, crossed_interval, interval, median

from .axes import AXES, RELATIONS, Axis, Over, Relation
from .comparison import RIVALS, RULE, Rival, ScenarioResult

LEAST_OTHERS_LOSS_PCT = 0.5
"""Losses of the others below it count as this much in a ratio."""
LEAST_SEEDS = 3
"""Fewer bundles say next to nothing about training seeds."""
IN_JSON = {"broken": "broken", "best_effort": "best_effort", "cpu": "cpu_wasted"}


@dataclass(frozen=True)
class AgainstRival:
    """An agent beside the rule, or beside each scenario's best fixed setting, over N scenarios.

    Attributes:
        scenarios: their N names.
        overs: N, for each scenario.
        resamples, level, seed: of bootstrap intervals over scenarios.
    """

    agent: str
    rival: Rival
    scenarios: tuple[str, ...]
    overs: tuple[Over, ...]
    resamples: int
    level: float
    seed: int

    def share(self, relation: Relation) -> float:
        """Of the scenarios."""
        return sum(over.relation == relation for over in self.overs) / len(self.overs)

    def values(self, axis: Axis) -> Array:
        """(N,)."""
        return np.asarray([getattr(over, axis) for over in self.overs], np.float64)

    def median(self, axis: Axis) -> float:
        """Over scenarios."""
        return float(np.median(self.values(axis)))

    def worst(self, axis: Axis) -> tuple[str, float]:
        """Scenario and value: the highest ratio, or the least gain of best effort."""
        values = self.values(axis)
        at = int(values.argmin() if axis == "best_effort" else values.argmax())
        return self.scenarios[at], float(values[at])

    def axis_json(self, axis: Axis) -> dict[str, Any]:
        """Median with a bootstrap interval over scenarios, and worst."""
        typical = interval(self.values(axis), median, self.resamples, self.level, self.seed)
        scenario, worst = self.worst(axis)
        ends = [typical.low, typical.high]
        return {"median": typical.value, "ci95": ends, "worst": worst, "worst_scenario": scenario}

    def to_json(self) -> dict[str, Any]:
        """All axes and shares."""
        return {IN_JSON[axis]: self.axis_json(axis) for axis in AXES} | {name: self.share(name) for name in RELATIONS}


@dataclass(frozen=True)
class OverTrainingSeeds:
    """R policies that differ in their training seed alone, together beside a rival."""

    each: tuple[AgainstRival, ...]

    def axis_json(self, axis: Axis) -> dict[str, Any]:
        """Median over scenarios of the mean over policies, and each policy's own median.

        Ratios have an interval of other seeds and other scenarios alike, see
        `slicepilot.data.intervals.crossed_interval`.
        """
        first = self.each[0]
        values = np.stack([row.values(axis) for row in self.each])
        ends = None
        if axis != "best_effort":
            typical = crossed_interval(values, median, first.resamples, first.level, first.seed)
            ends = [typical.low, typical.high]
        return {"median": float(median(values.mean(axis=0))), "ci95": ends, "medians": median(values).tolist()}

    def to_json(self) -> dict[str, Any]:
        """As ``slicepilot evaluate --suite`` prints it."""
        return {
            "agents": [row.agent for row in self.each],
            "rival": self.each[0].rival,
            **{IN_JSON[axis]: self.axis_json(axis) for axis in AXES},
            **{name: [row.share(name) for row in self.each] for name in ("dominates", "dominated")},
        }


def against(results: Sequence[ScenarioResult], agent: str, rival: Rival) -> AgainstRival | None:
    """An agent that ran on all scenarios against a rival; None if the rival did not."""
    overs = [result.over(agent, rival) for result in results]
    known = tuple(over for over in overs if over is not None)
    if len(known) < len(results):
        return None
    first = results[0]
    names = tuple(result.scenario for result in results)
    return AgainstRival(agent, rival, names, known, first.resamples, first.level, first.seed)


def beside_rivals(results: Sequence[ScenarioResult], agent: str) -> list[AgainstRival]:
    """An agent against every rival that ran and is not the agent itself."""
    rows = [against(results, agent, rival) for rival, name in RIVALS.items() if name != agent]
    return [row for row in rows if row is not None]


def compared(results: Sequence[ScenarioResult], rival: Rival) -> list[AgainstRival]:
    """The judged agents, then all other adaptive agents, against a rival; empty if the rival did not run everywhere."""
    subjects = results[0].subjects
    adaptive = [a.name for a in results[0].rivals if a.role != "fixed"]
    names = [name for name in dict.fromkeys((*subjects, *adaptive)) if rival != "rule" or name != RULE]
    rows = [against(results, name, rival) for name in names if _everywhere(results, name)]
    return [row for row in rows if row is not None]


def over_training_seeds(results: Sequence[ScenarioResult], agents: Sequence[str]) -> list[OverTrainingSeeds]:
    """The policies of a training against every rival; none for fewer than `LEAST_SEEDS` policies or two scenarios."""
    if len(agents) < LEAST_SEEDS or len(results) < 2:
        return []
    pooled = []
    for rival in RIVALS:
        rows = [against(results, name, rival) for name in agents]
        each = tuple(row for row in rows if row is not None)
        if each:
            pooled.append(OverTrainingSeeds(each))
    return pooled


def summary(results: Sequence[ScenarioResult]) -> dict[str, dict[str, Any]]:
    """Every agent over all scenarios, as ``slicepilot evaluate --json`` prints it.

    None for a rival that did not run. A setting in shares of the node that equals another setting on some nodes runs
    there under a single name. Agents that did not run everywhere are left out.
    """
    outcome: dict[str, dict[str, Any]] = {}
    for name in (agent.name for agent in results[0].rivals if _everywhere(results, agent.name)):
        beside = partial(against, results, name)
        fixed, rule = beside("best_fixed"), beside("rule")
        outcome[name] = {"over_best_fixed": None, "over_rule": None}
        if fixed is not None:
            figures = fixed.to_json()
            broken = figures.pop("broken")
            outcome[name]["over_best_fixed"] = broken | {"wins": int((fixed.values("broken") < 1.0).sum())} | figures
        if rule is not None:
            outcome[name]["over_rule"] = rule.to_json() | {"others_loss": {"median": _others_loss(results, name)}}
    return outcome


def _others_loss(results: Sequence[ScenarioResult], name: str) -> float:
    """Median ratio of the others' loss to their loss under the rule."""
    losses = [
        [max(result.agent(agent).mean("others_loss_pct"), LEAST_OTHERS_LOSS_PCT) for agent in (name, RULE)]
        for result in results
    ]
    ratios = [mine / rules for mine, rules in losses]
    return float(np.median(ratios))


def _everywhere(results: Sequence[ScenarioResult], name: str) -> bool:
    return all(any(agent.name == name for agent in result.rivals) for result in results)
