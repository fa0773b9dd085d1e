"""Three axes on which agents are judged, and how two agents on a scenario relate.

Fewer broken promises are no clear gain if they cost best effort or waste CPU. So an agent *dominates* another where it
is not worse on any axis and better on at least one:

    axis                                                              not worse   better
    promises: seconds broken, weighted by slice, a ratio              1.02        0.90
    best effort: what is carried beyond promises, gain in points      -0.5        +2
    CPU: what limits hold and no slice uses, a ratio; where an edge   1.01        0.95
    application runs, its work instead, the other's over its own

The thresholds are declared, not measured. A difference up to the first does not count against an agent; from the second
on it counts in its favour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Relation = Literal["dominates", "equal", "dominated", "neither"]
RELATIONS: tuple[Relation, ...] = ("dominates", "equal", "dominated", "neither")

Axis = Literal["broken", "best_effort", "cpu"]
AXES: tuple[Axis, ...] = ("broken", "best_effort", "cpu")

BROKEN_NOT_WORSE, BROKEN_BETTER = 1.02, 0.90
BEST_EFFORT_NOT_WORSE, BEST_EFFORT_BETTER = -0.5, 2.0
CPU_NOT_WORSE, CPU_BETTER = 1.01, 0.95
# Ratios of tiny figures would be large, so smaller figures count as this much.
FLOOR_SHARE = 2e-3
"""Broken seconds, as a share of the run."""
CPU_FLOOR = 0.01
"""Wasted CPU, in CPUs."""


@dataclass(frozen=True)
class Figures:
    """An agent's means over seeds on a scenario.

    Attributes:
        broken_s: seconds of broken promises, weighted by slice, above zero.
        best_effort_loss_pct: `slicepilot.training.evaluation.scores.best_effort_loss_pct`.
        cpu: above zero, less is better: core-seconds wasted, or the inverse of an edge application's work.
    """

    broken_s: float
    best_effort_loss_pct: float
    cpu: float

    @classmethod
    def floored(
        cls,
        duration_s: float,
        broken_s: float,
        best_effort_loss_pct: float,
        wasted_core_s: float,
        edge_work: float | None = None,
    ) -> Figures:
        """From means over seeds; `FLOOR_SHARE` and `CPU_FLOOR` of the run are the least, and a unit of work."""
        cpu = max(wasted_core_s, CPU_FLOOR * duration_s) if edge_work is None else 1.0 / max(edge_work, 1.0)
        return cls(max(broken_s, FLOOR_SHARE * duration_s), best_effort_loss_pct, cpu)

    def not_worse(self, other: Figures) -> bool:
        """Than another agent on the same scenario, on any axis."""
        return (
            self.broken_s / other.broken_s <= BROKEN_NOT_WORSE
            and other.best_effort_loss_pct - self.best_effort_loss_pct >= BEST_EFFORT_NOT_WORSE
            and self.cpu / other.cpu <= CPU_NOT_WORSE
        )

    def dominates(self, other: Figures) -> bool:
        """Not worse on any axis, and better on some."""
        return self.not_worse(other) and (
            self.broken_s / other.broken_s <= BROKEN_BETTER
            or other.best_effort_loss_pct - self.best_effort_loss_pct >= BEST_EFFORT_BETTER
            or self.cpu / other.cpu <= CPU_BETTER
        )

    def over(self, other: Figures) -> Over:
        """This agent beside another on the same scenario."""
        relation: Relation = "neither"
        if self.dominates(other):
            relation = "dominates"
        elif other.dominates(self):
            relation = "dominated"
        elif self.not_worse(other) and other.not_worse(self):
            relation = "equal"
        return Over(
            self.broken_s / other.broken_s,
            other.best_effort_loss_pct - self.best_effort_loss_pct,
            self.cpu / other.cpu,
            relation,
        )


@dataclass(frozen=True)
class Over:
    """An agent beside another on a scenario.

    Attributes:
        broken: ratio of their broken seconds; less is better.
        best_effort: in points of what is carried beyond promises under no control; more is better.
        cpu: ratio of their wasted CPU; less is better.
        relation: `equal` where neither is worse on any axis.
    """

    broken: float
    best_effort: float
    cpu: float
    relation: Relation

    def worse_on(self) -> tuple[Axis, ...]:
        """Axes on which it is worse, by more than what does not count."""
        worse = (
            self.broken > BROKEN_NOT_WORSE,
            self.best_effort < BEST_EFFORT_NOT_WORSE,
            self.cpu > CPU_NOT_WORSE,
        )
        return tuple(axis for axis, is_worse in zip(AXES, worse, strict=True) if is_worse)

    def better_on(self) -> tuple[Axis, ...]:
        """Axes on which the other is worse."""
        return Over(1.0 / self.broken, -self.best_effort, 1.0 / self.cpu, self.relation).worse_on()


def shown(axis: Axis, value: float) -> str:
    """A figure of `Over` for people, in five characters where they suffice."""
    few = abs(value) >= 99.95
    return f"{value:+.{0 if few else 1}f}" if axis == "best_effort" else f"{value:.{0 if few else 2}f}"


def best_in_hindsight(settings: dict[str, Figures]) -> str | None:
    """The setting that an operator who knew all figures would choose; None without settings.

    Among the settings whose broken seconds are within `BROKEN_NOT_WORSE` of the least, this is the setting that leaves
    most to best effort, then that which wastes least CPU.
    """
    if not settings:
        return None
    least = min(figures.broken_s for figures in settings.values())
    level = {name: f for name, f in settings.items() if f.broken_s <= BROKEN_NOT_WORSE * least}
    return min(level, key=lambda name: (level[name].best_effort_loss_pct, level[name].cpu))
