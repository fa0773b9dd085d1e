"""Judge agents: every one on the same seeds of the same scenarios, compared pairwise and said in plain words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field

from ...agents.base import Agent
from ...agents.heuristics.fixed import FixedAgent, no_control
from ...agents.heuristics.oracle import Oracle
from ...agents.learned.agent import LearnedAgent
from ...configs import load
from ...data.intervals import Array, Interval, interquartile_mean, interval, mean, paired_differences, paired_ratio
from ...data.reference import published_settings
from ...env.reward import RewardWeights
from ...env.simulator.scenario import Scenario
from ...env.slices import FloatArray, SliceSet
from .rollouts import Rollout, only_active, play
from .scores import EDGE_WORK, Scores, Window, delay_ecdf_us, delay_p99_us, score, violation_s

BackendName = Literal["simulator", "testbed"]
Role = Literal["learned", "fixed", "adaptive", "oracle", "reference"]
Outcome = Literal["better", "tie", "worse"]
ALL_SLICES = max(setting.active_slices for setting in published_settings())
OnPeriod = Callable[[str, str], None]
"""Called with scenario and agent name after every control period."""


def _check_window(window: Window) -> Window:
    if not window[0] < window[1]:
        raise ValueError(f"start {window[0]:g} must be before end {window[1]:g}")
    return window


@dataclass(frozen=True)
class EvaluationConfig:
    """``configs/evaluation/NAME.yaml``: how agents are judged.

    Attributes:
        scenarios: names or paths.
        agents: names from `slicepilot.agents.heuristics.registry`; ``*`` matches any part of a name.
        seeds: runs of every agent on every scenario, side by side.
        seed: of the simulator; together with the number of seeds it fixes all arrivals and noise.
        loss_window_s: per scenario the span (from, to] in which the two headline losses are taken; the whole run for a
            scenario that is not listed.
        control_period_s: of all scenarios; None = their own.
        reward: name of the reward weights behind the return.
        backend: ``simulator``, or ``testbed``: real UPFs in real time, agents in turns, one repetition per seed.
        tie_pct: losses that differ by less, in percentage points, count as equal.
        resamples, level: of the bootstrap.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    scenarios: Annotated[tuple[str, ...], Field(min_length=1)]
    agents: tuple[str, ...] = ("*",)
    seeds: Annotated[int, Field(ge=1, le=10_000)] = 30
    seed: Annotated[int, Field(ge=0)] = 0
    loss_window_s: dict[str, Annotated[Window, AfterValidator(_check_window)]] = field(default_factory=dict)
    control_period_s: Annotated[float, Field(ge=0.002, le=30.0)] | None = None
    backend: BackendName = "simulator"
    reward: str = "default"
    tie_pct: Annotated[float, Field(ge=0)] = 0.1
    resamples: Annotated[int, Field(ge=100)] = 2000
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95

    @classmethod
    def from_yaml(cls, name_or_path: str) -> EvaluationConfig:
        """Load ``configs/evaluation/NAME.yaml`` or a user's file; raises `slicepilot.configs.ConfigError`."""
        return load("evaluation", name_or_path, cls)


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
        oracle_gap_pct: how far the subject's return (interquartile mean) lies below the oracle's, in % of the oracle's.
    """

    subject: str
    comparisons: tuple[Comparison, ...]
    fixed: tuple[str, ...]
    best_fixed: str | None
    violation_ratio: Interval | None
    cpu_ratio: Interval | None
    edge_ratio: Interval | None
    oracle_gap_pct: float | None

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

    def summary(self, name: str, key: str) -> Interval:
        """Interquartile mean of the return, mean of everything else, over seeds with a bootstrap interval."""
        statistic = interquartile_mean if key == "return" else mean
        return interval(self.agent(name).scores[key], statistic, self.resamples, self.level, self.seed)

    @cached_property
    def best_fixed(self) -> AgentResult | None:
        """The fixed setting with the fewest weighted SLA-violation seconds in hindsight, then the least CPU held."""
        return _least_broken(a for a in self.rivals if a.role == "fixed")

    @cached_property
    def featured(self) -> tuple[str, ...]:
        """Who is shown over time: the subjects, the oracle, the best fixed setting, no control, the best heuristic."""
        chosen = [self.agent(name) for name in self.subjects]
        chosen += [a for a in self.rivals if a.role == "oracle"]
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
        oracle = next((a for a in self.rivals if a.role == "oracle"), None)
        best = _least_broken(fixed)
        return SubjectSummary(
            subject=subject,
            comparisons=self._compare(me, rivals),
            fixed=tuple(a.name for a in fixed),
            best_fixed=best.name if best else None,
            violation_ratio=self._ratio(me, best, "sla_violation_s"),
            cpu_ratio=self._ratio(me, best, "cpu_held_core_s"),
            edge_ratio=self._ratio(me, best, EDGE_WORK),
            oracle_gap_pct=oracle_gap_pct(me.scores["return"], oracle.scores["return"]) if oracle else None,
        )

    def _compare(self, me: AgentResult, rivals: Sequence[AgentResult]) -> tuple[Comparison, ...]:
        if not rivals:
            return ()
        differences = [
            paired_differences(
                me.scores[key], np.stack([r.scores[key] for r in rivals]), self.resamples, self.level, self.seed
            )
            for key in ("slice1_loss_pct", "others_loss_pct")
        ]
        return tuple(
            Comparison(rival.name, priority, others, self.tie_pct)
            for rival, priority, others in zip(rivals, *differences, strict=True)
        )

    def _ratio(self, me: AgentResult, best: AgentResult | None, key: str) -> Interval | None:
        if best is None or key not in me.scores:
            return None
        return paired_ratio(me.scores[key], best.scores[key], self.resamples, self.level, self.seed)

    def to_json(self) -> dict[str, Any]:
        """The figures that ``slicepilot evaluate --json`` prints for one scenario; the first subject's verdict."""
        verdict = self.verdict(self.subjects[0]) if self.subjects else None
        return {
            "scenario": self.scenario,
            "seeds": self.seeds,
            "agents": [self._agent_json(a) for a in self.agents],
            "dominated_by_agent": verdict.dominated if verdict else [],
            "oracle_gap_pct": verdict.oracle_gap_pct if verdict else None,
        }

    def _agent_json(self, agent: AgentResult) -> dict[str, Any]:
        keys: tuple[str, ...] = (
            *("slice1_loss_pct", "others_loss_pct"),
            *("slice1_delay_p99_us", "sla_violation_s", "cpu_held_core_s"),
        )
        keys += (EDGE_WORK,) if EDGE_WORK in agent.scores else ()
        returns = self.summary(agent.name, "return")
        figures: dict[str, Any] = {key: finite(float(agent.scores[key].mean())) for key in keys}
        return {"name": agent.name, **figures, "return_iqm": returns.value, "ci95": [returns.low, returns.high]}


def _least_broken(agents: Iterable[AgentResult]) -> AgentResult | None:
    return min(
        agents,
        key=lambda a: (round(float(a.scores["sla_violation_s"].mean()), 6), a.scores["cpu_held_core_s"].mean()),
        default=None,
    )


def finite(value: float) -> float | None:
    """The value, or None where JSON has no number for it."""
    return value if np.isfinite(value) else None


def oracle_gap_pct(returns: Array, oracle_returns: Array) -> float:
    """100 x (oracle - agent) / |oracle|, interquartile means over seeds.

    Relative to the oracle's return and not to what the oracle gains over no control: that gain vanishes where a node is
    not contended, and a gap in units of almost nothing says nothing. Negative: better than the oracle, whose search
    is limited.
    """
    best = float(interquartile_mean(oracle_returns))
    return 100.0 * (best - float(interquartile_mean(returns))) / max(abs(best), 1e-9)


def evaluate_scenario(
    scenario: Scenario,
    agents: Sequence[Agent],
    config: EvaluationConfig,
    subjects: Sequence[str] = (),
    on_period: OnPeriod | None = None,
) -> ScenarioResult:
    """Play all agents on the same seeds and score them.

    Args:
        scenario: what happens.
        agents: who decides; names must differ. Those named in ``subjects`` are the ones to judge.
        config: seeds, windows, bootstrap.
        subjects: names of the agents whose verdict is wanted, the most important first.
        on_period: progress.

    Raises:
        ValueError: two agents of one name, or a subject that is not among the agents.
    """
    names = [a.name for a in agents]
    if len(set(names)) != len(names) or set(subjects) - set(names):
        raise ValueError(
            f"agents: {', '.join(names)}: names must differ and hold every subject ({', '.join(subjects)})"
        )
    weights = RewardWeights.from_yaml(config.reward)

    recordings = []
    for agent, played in plays_of(scenario, agents):
        tick = partial(on_period, scenario.name, agent.name) if on_period else None
        recordings.append(play(agent, played, config.seeds, config.seed, weights, tick))
    return judge(scenario, agents, config, recordings, subjects)


def plays_of(scenario: Scenario, agents: Sequence[Agent]) -> list[tuple[Agent, Scenario]]:
    """Who plays what: the two references that losses are taken against, then every agent.

    The references are no control with the priority slice alone, and with all slices. A published setting for fewer
    slices plays with as many.
    """
    slices = scenario.slice_set()
    plays: list[tuple[Agent, Scenario]] = [
        (no_control(), only_active(scenario, _first_active(slices, 1))),
        (no_control(), scenario),
    ]
    for agent in agents:
        reference = role_of(agent) == "reference"
        active = _first_active(slices, _active_slices(agent))
        plays.append((agent, only_active(scenario, active) if reference else scenario))
    return plays


def judge(
    scenario: Scenario,
    agents: Sequence[Agent],
    config: EvaluationConfig,
    recordings: Sequence[Rollout],
    subjects: Sequence[str] = (),
) -> ScenarioResult:
    """Score recordings in the order of `plays_of`; other arguments as for `evaluate_scenario`."""
    slices = scenario.slice_set()
    window = config.loss_window_s.get(scenario.name)
    alone, uncontrolled, *own = recordings
    results = []
    for agent, recording in zip(agents, own, strict=True):
        role = role_of(agent)
        results.append(
            AgentResult(
                name=agent.name,
                role=role,
                scores=score(recording, alone, uncontrolled, window),
                slice_violation_s=violation_s(recording).mean(axis=1),
                slice_delay_p99_us=delay_p99_us(recording).mean(axis=1),
                ecdf_us=delay_ecdf_us(recording),
                trace=recording.series[..., 0].copy(),
                wall_s=recording.wall_s,
            )
        )
    result = ScenarioResult(
        scenario=scenario.name,
        description=scenario.description,
        slice_names=slices.names,
        priority_index=slices.priority_index,
        weight=_column(slices, "weight"),
        committed_mbps=_column(slices, "sla.committed_mbps"),
        delay_bound_ms=_column(slices, "sla.delay_bound_ms"),
        hardware=scenario.hardware,
        duration_s=scenario.duration_s,
        period_s=scenario.control_period_s,
        seeds=config.seeds,
        seed=config.seed,
        loss_window_s=window,
        tie_pct=config.tie_pct,
        resamples=config.resamples,
        level=config.level,
        backend=config.backend,
        agents=tuple(results),
        subjects=tuple(subjects),
    )
    keep = result.featured
    return replace(result, agents=tuple(a if a.name in keep else replace(a, trace=None) for a in result.agents))


def _column(slices: SliceSet, name: str) -> tuple[float, ...]:
    return tuple(float(value) for value in slices.column(name)[:, 0])


def _active_slices(agent: Agent) -> int:
    """For how many slices a published setting was meant; `ALL_SLICES` for everyone else."""
    active = agent.active_slices if isinstance(agent, FixedAgent) else None
    return ALL_SLICES if active is None else active


def role_of(agent: Agent) -> Role:
    """What an agent counts as; a published setting for fewer active slices is a reference."""
    if _active_slices(agent) < ALL_SLICES:
        return "reference"
    kinds: tuple[tuple[type, Role], ...] = ((LearnedAgent, "learned"), (FixedAgent, "fixed"), (Oracle, "oracle"))
    for kind, role in kinds:
        if isinstance(agent, kind):
            return role
    return "adaptive"


def _first_active(slices: SliceSet, count: int) -> tuple[str, ...]:
    """The priority slice and the next ones in order, ``count`` in all."""
    priority = slices.names[slices.priority_index]
    return (priority, *(name for name in slices.names if name != priority))[:count]
