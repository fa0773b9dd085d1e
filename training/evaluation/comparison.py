"""Results of an evaluation on one scenario: every agent, and the judged agents against all others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from slicepilot.data.intervals import (
    Array,
    Interval,
    interquartile_mean,
    interval,
    mean,
    paired_differences,
    paired_ratio,
)
from slicepilot.env.arrays import FloatArray

from .config import BackendName
from .scores import EDGE_WORK, Scores, Window

Role = Literal["learned", "fixed", "adaptive", "clairvoyant", "reference"]
Outcome = Literal["better", "tie", "worse"]


@dataclass(frozen=True)
class AgentResult:
    """One agent on one scenario.

    Attributes:
        scores: (L,) per key, one value per seed; `slicepilot.training.evaluation.scores.score` defines the keys.
        slice_violation_s, slice_delay_p99_us: (S,), means over seeds, not weighted.
        ecdf_us: (Q,), quantiles of the priority slice's delay, `slicepilot.training.evaluation.scores.delay_ecdf_us`.
        trace: (8, T, S) of the first seed, rows as in `slicepilot.training.evaluation.rollouts.SERIES`; None where not
            kept.
        wall_s: seconds it took to play.
    """

    name: str
    role: Role
    scores: Scores
    slice_violation_s: Array
    slice_delay_p99_us: Array
    ecdf_us: FloatArray
    trace: FloatArray | None
    wall_s: float


@dataclass(frozen=True)
class Comparison:
    """A subject against one rival on the same seeds: differences of the two losses in points (negative: less lost)."""

    rival: str
    priority: Interval
    others: Interval
    tie_pct: float

    def outcome(self, difference: Interval) -> Outcome:
        """A tie unless the paired interval excludes zero and the difference is larger than ``tie_pct``."""
        if not difference.excludes_zero or abs(difference.value) <= self.tie_pct:
            return "tie"
        return "better" if difference.value < 0 else "worse"

    @property
    def outcomes(self) -> tuple[Outcome, Outcome]:
        """For the priority slice's and for the others' loss."""
        return self.outcome(self.priority), self.outcome(self.others)

    @property
    def dominates(self) -> bool:
        """At least as good in both losses and better in one."""
        return "worse" not in self.outcomes and "better" in self.outcomes

    @property
    def dominated(self) -> bool:
        """At least as bad in both losses and worse in one."""
        return "better" not in self.outcomes and "worse" in self.outcomes

    @property
    def why_not(self) -> str:
        """Why the subject does not dominate, in words; empty where it does."""
        if self.dominates:
            return ""
        said = [
            f"{whose} loss is {d.value:.1f} points higher"
            for whose, d in (("the priority slice's", self.priority), ("the others'", self.others))
            if self.outcome(d) == "worse"
        ]
        return " and ".join(said) or "equal in both losses"


@dataclass(frozen=True)
class SubjectSummary:
    """How a subject fares against everyone else on one scenario.

    Attributes:
        comparisons: against every rival, references left out.
        best_fixed: the fixed setting with the fewest weighted SLA-violation seconds in hindsight; None without any.
        violation_ratio, cpu_ratio: the subject's over that setting's, paired by seed.
        edge_ratio: the same of what an edge application got done; None where there is none.
        clairvoyant_gap_pct: how far the subject's return (interquartile mean) lies below the clairvoyant player's, in %
            of that.
    """

    subject: str
    comparisons: tuple[Comparison, ...]
    fixed: tuple[str, ...]
    best_fixed: str | None
    violation_ratio: Interval | None
    cpu_ratio: Interval | None
    edge_ratio: Interval | None
    clairvoyant_gap_pct: float | None

    @property
    def dominated(self) -> list[str]:
        """Fixed settings that the subject dominates."""
        return [c.rival for c in self.comparisons if c.dominates and c.rival in self.fixed]

    @property
    def not_dominated(self) -> list[Comparison]:
        """Fixed settings that it does not dominate."""
        return [c for c in self.comparisons if not c.dominates and c.rival in self.fixed]

    @property
    def beaten_by(self) -> list[str]:
        """Rivals of any kind that dominate the subject."""
        return [c.rival for c in self.comparisons if c.dominated]


@dataclass(frozen=True)
class ScenarioResult:
    """All agents on one scenario."""

    scenario: str
    description: str
    slice_names: tuple[str, ...]
    priority_index: int
    weight: tuple[float, ...]
    committed_mbps: tuple[float, ...]
    delay_bound_ms: tuple[float, ...]
    hardware: str
    duration_s: float
    period_s: float
    seeds: int
    seed: int
    loss_window_s: Window | None
    tie_pct: float
    resamples: int
    level: float
    backend: BackendName
    agents: tuple[AgentResult, ...]
    subjects: tuple[str, ...]
    bound_return: float | None = None
    """What nobody can beat, means over seeds, see `slicepilot.training.evaluation.bound`; None off the simulator."""
    bound_violation_s: float | None = None

    def agent(self, name: str) -> AgentResult:
        """By name; raises KeyError."""
        return {a.name: a for a in self.agents}[name]

    @property
    def has_edge(self) -> bool:
        """Whether an edge application ran on the node, and what it got done was counted."""
        return all(EDGE_WORK in a.scores for a in self.agents)

    @cached_property
    def rivals(self) -> tuple[AgentResult, ...]:
        """All but the references, which run with fewer slices."""
        return tuple(a for a in self.agents if a.role != "reference")

    def gap_to_bound_pct(self, name: str) -> float | None:
        """100 x (bound - return) / bound, of mean returns; None without a bound."""
        if self.bound_return is None:
            return None
        return 100.0 * (1.0 - float(self.agent(name).scores["return"].mean()) / self.bound_return)

    def summary(self, name: str, key: str) -> Interval:
        """Interquartile mean of the return, mean of everything else, over seeds with an interval."""
        statistic = interquartile_mean if key == "return" else mean
        return interval(self.agent(name).scores[key], statistic, level=self.level)

    @cached_property
    def best_fixed(self) -> AgentResult | None:
        """The fixed setting with the fewest weighted SLA-violation seconds in hindsight, then the least CPU held."""
        return _least_broken(a for a in self.rivals if a.role == "fixed")

    @cached_property
    def featured(self) -> tuple[str, ...]:
        """Who is shown over time: subjects, clairvoyant player, best fixed setting, no control, best heuristic."""
        chosen = [self.agent(name) for name in self.subjects]
        chosen += [a for a in self.rivals if a.role == "clairvoyant"]
        chosen += [a for a in (self.best_fixed,) if a]
        chosen += [a for a in self.rivals if a.name == "no-control"]
        heuristic = _least_broken(a for a in self.rivals if a.role == "adaptive" and a.name not in self.subjects)
        chosen += [heuristic] if heuristic else []
        return tuple(dict.fromkeys(a.name for a in chosen))

    def verdict(self, subject: str) -> SubjectSummary:
        """The subject against every rival."""
        me = self.agent(subject)
        rivals = [a for a in self.rivals if a.name != subject]
        fixed = [a for a in rivals if a.role == "fixed"]
        clairvoyant = next((a for a in self.rivals if a.role == "clairvoyant"), None)
        best = _least_broken(fixed)
        return SubjectSummary(
            subject=subject,
            comparisons=self._compare(me, rivals),
            fixed=tuple(a.name for a in fixed),
            best_fixed=best.name if best else None,
            violation_ratio=self._ratio(me, best, "sla_violation_s"),
            cpu_ratio=self._ratio(me, best, "cpu_held_core_s"),
            edge_ratio=self._ratio(me, best, EDGE_WORK),
            clairvoyant_gap_pct=clairvoyant_gap_pct(me.scores["return"], clairvoyant.scores["return"])
            if clairvoyant
            else None,
        )

    def _compare(self, me: AgentResult, rivals: Sequence[AgentResult]) -> tuple[Comparison, ...]:
        if not rivals:
            return ()
        differences = [
            paired_differences(me.scores[key], np.stack([r.scores[key] for r in rivals]), self.level)
            for key in ("slice1_loss_pct", "others_loss_pct")
        ]
        return tuple(
            Comparison(rival.name, priority, others, self.tie_pct)
            for rival, priority, others in zip(rivals, *differences, strict=True)
        )

    def _ratio(self, me: AgentResult, best: AgentResult | None, key: str) -> Interval | None:
        if best is None or key not in me.scores:
            return None
        return paired_ratio(me.scores[key], best.scores[key], self.level)

    def to_json(self) -> dict[str, Any]:
        """The figures that ``slicepilot evaluate --json`` prints for one scenario; the first subject's verdict."""
        verdict = self.verdict(self.subjects[0]) if self.subjects else None
        return {
            "scenario": self.scenario,
            "seeds": self.seeds,
            "agents": [self._agent_json(a) for a in self.agents],
            "dominated_by_agent": verdict.dominated if verdict else [],
            "oracle_gap_pct": verdict.clairvoyant_gap_pct if verdict else None,
            "bound": None
            if self.bound_return is None or self.bound_violation_s is None
            else {"mean_return": self.bound_return, "sla_violation_s": self.bound_violation_s},
        }

    def _agent_json(self, agent: AgentResult) -> dict[str, Any]:
        keys: tuple[str, ...] = (
            *("slice1_loss_pct", "others_loss_pct"),
            *("slice1_delay_p99_us", "sla_violation_s", "cpu_held_core_s"),
        )
        keys += (EDGE_WORK,) if EDGE_WORK in agent.scores else ()
        returns = self.summary(agent.name, "return")
        figures: dict[str, Any] = {key: finite(float(agent.scores[key].mean())) for key in keys}
        return {
            "name": agent.name,
            **figures,
            "return_iqm": returns.value,
            "ci95": [returns.low, returns.high],
            "gap_to_bound_pct": self.gap_to_bound_pct(agent.name),
        }


def _least_broken(agents: Iterable[AgentResult]) -> AgentResult | None:
    return min(
        agents,
        key=lambda a: (round(float(a.scores["sla_violation_s"].mean()), 6), a.scores["cpu_held_core_s"].mean()),
        default=None,
    )


def finite(value: float) -> float | None:
    """The value, or None where JSON has no number for it."""
    return value if np.isfinite(value) else None


def clairvoyant_gap_pct(returns: Array, clairvoyant_returns: Array) -> float:
    """100 x (clairvoyant - agent) / |clairvoyant|, interquartile means over seeds.

    Relative to that player's return and not to what it gains over no control: that gain vanishes where a node is not
    contended, and a gap in units of almost nothing says nothing. Negative: better than a search that is limited.
    """
    best = float(interquartile_mean(clairvoyant_returns))
    return 100.0 * (best - float(interquartile_mean(returns))) / max(abs(best), 1e-9)
