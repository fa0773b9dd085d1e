"""Results of an evaluation on a scenario: every agent, and each beside the rule and the best fixed setting."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from slicepilot.data.intervals import Interval, interquartile_mean, interval, mean
from slicepilot.env.arrays import FloatArray

from .axes import Figures, Over, best_in_hindsight
from .config import BackendName
from .scores import BEST_EFFORT_LOSS, BROKEN_S, CPU_WASTED, EDGE_WORK, EPISODE_REWARD, Scores, Window

Role = Literal["learned", "fixed", "adaptive", "clairvoyant", "reference"]
Rival = Literal["rule", "best_fixed"]
RULE = "queue-greedy"
RIVALS: dict[Rival, str] = {"rule": RULE, "best_fixed": "the best fixed setting"}
_IN_JSON = (
    *("slice1_loss_pct", "others_loss_pct", "slice1_delay_p99_us", BROKEN_S),
    *("cpu_held_core_s", CPU_WASTED, BEST_EFFORT_LOSS, EDGE_WORK, EPISODE_REWARD),
)

_NEVER_NEGATIVE = ("slice1_delay_p99_us", BROKEN_S, "cpu_held_core_s", CPU_WASTED, "churn_pct", EDGE_WORK)


@dataclass(frozen=True)
class AgentResult:
    """Results of an agent on a scenario.

    Attributes:
        scores: (L,) per key, one value per seed; `slicepilot.training.evaluation.scores.score` defines the keys.
        ecdf_us: (Q,), quantiles of the priority slice's delay, `slicepilot.training.evaluation.scores.delay_ecdf_us`.
        trace: (8, T, S) of the first seed, rows as in `slicepilot.training.evaluation.rollouts.SERIES`; None where not
            kept.
        wall_s: seconds it took to play.
    """

    name: str
    role: Role
    scores: Scores
    ecdf_us: FloatArray
    trace: FloatArray | None
    wall_s: float

    def mean(self, key: str) -> float:
        """Of a score, over seeds."""
        return float(self.scores[key].mean())


@dataclass(frozen=True)
class ScenarioResult:
    """Results of all agents on a scenario."""

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
        """Whether an edge application ran on the node and its work was counted."""
        return all(EDGE_WORK in a.scores for a in self.agents)

    @cached_property
    def rivals(self) -> tuple[AgentResult, ...]:
        """All but the references, which run with fewer slices."""
        return tuple(a for a in self.agents if a.role != "reference")

    def summary(self, name: str, key: str) -> Interval:
        """Interquartile mean of the return, mean of everything else, over seeds with an interval.

        Intervals of times and shares end where these do: nothing is broken for longer than the run.
        """
        statistic = interquartile_mean if key == "return" else mean
        found = interval(self.agent(name).scores[key], statistic, level=self.level)
        most = self.duration_s if key == BROKEN_S else 100.0 if key.endswith("_pct") else np.inf
        least = 0.0 if key in _NEVER_NEGATIVE else -np.inf
        low, high = max(found.low, least), min(found.high, most)
        return Interval(found.value, min(low, found.value), max(high, found.value))

    @cached_property
    def figures(self) -> dict[str, Figures]:
        """Every rival's figures on the three axes, by name."""
        return {
            a.name: Figures.floored(
                self.duration_s,
                a.mean(BROKEN_S),
                a.mean(BEST_EFFORT_LOSS),
                a.mean(CPU_WASTED),
                a.mean(EDGE_WORK) if self.has_edge else None,
            )
            for a in self.rivals
        }

    @cached_property
    def best_fixed(self) -> str | None:
        """`slicepilot.training.evaluation.axes.best_in_hindsight` among the fixed settings."""
        return best_in_hindsight({a.name: self.figures[a.name] for a in self.rivals if a.role == "fixed"})

    def rival(self, which: Rival) -> str | None:
        """Name of the agent that others are compared with; None where it did not run."""
        return self.best_fixed if which == "best_fixed" else next((a.name for a in self.rivals if a.name == RULE), None)

    def over(self, name: str, which: Rival) -> Over | None:
        """An agent compared with the rule or with the best fixed setting; None where that did not run."""
        rival = self.rival(which)
        return None if rival is None else self.figures[name].over(self.figures[rival])

    @cached_property
    def featured(self) -> tuple[str, ...]:
        """Agents shown everywhere: subjects, the rule, best fixed setting, no control, clairvoyant, best heuristic."""
        chosen = [*self.subjects, *(name for which in RIVALS if (name := self.rival(which)))]
        chosen += [a.name for a in self.rivals if a.name == "no-control"]
        chosen += [a.name for a in self.rivals if a.role == "clairvoyant"]
        heuristics = [a for a in self.rivals if a.role == "adaptive" and a.name not in self.subjects]
        chosen += [a.name for a in sorted(heuristics, key=lambda a: a.mean(BROKEN_S))[:1]]
        return tuple(dict.fromkeys(chosen))

    def to_json(self) -> dict[str, Any]:
        """The figures that ``slicepilot evaluate --json`` prints for a scenario."""
        return {
            "scenario": self.scenario,
            "seeds": self.seeds,
            "best_fixed": self.best_fixed,
            "agents": [self._agent_json(a) for a in self.agents],
        }

    def _agent_json(self, agent: AgentResult) -> dict[str, Any]:
        returns = self.summary(agent.name, "return")
        judged = agent.role != "reference"
        return {
            "name": agent.name,
            **{key: finite(agent.mean(key)) for key in _IN_JSON if key in agent.scores},
            "return_iqm": returns.value,
            "ci95": [returns.low, returns.high],
            **{f"over_{which}": over_json(self.over(agent.name, which) if judged else None) for which in RIVALS},
        }


def over_json(over: Over | None) -> dict[str, Any] | None:
    """As ``slicepilot evaluate --json`` prints it."""
    if over is None:
        return None
    return {
        "relation": over.relation,
        "broken": over.broken,
        "best_effort": over.best_effort,
        "cpu_wasted": over.cpu,
    }


def finite(value: float) -> float | None:
    """The value, or None where JSON has no number for it."""
    return value if np.isfinite(value) else None
