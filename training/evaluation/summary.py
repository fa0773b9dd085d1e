"""Sentences about a judged agent, its gains and its losses, and the agents that a report shows."""

from __future__ import annotations

from collections.abc import Sequence

from .axes import AXES, RELATIONS, Axis, Over, shown
from .comparison import RIVALS, AgentResult, Rival, ScenarioResult
from .scores import BEST_EFFORT_LOSS, BROKEN_S, CPU_WASTED
from .suite import AgainstRival, beside_rivals

SHORT_LIST = 12
FEW_SEEDS = 5
"""Below this number of seeds intervals tell hardly any agents apart."""
AXIS_WORDS: dict[Axis, str] = {"broken": "promises", "best_effort": "best effort", "cpu": "CPU"}
_RELATE = {
    "dominates": "{} dominates {}",
    "equal": "{} equals {}",
    "dominated": "{} is dominated by {}",
    "neither": "{} neither dominates nor is dominated by {}",
}


def count(number: int, what: str) -> str:
    """A number and its noun."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def sentences(result: ScenarioResult, subject: str) -> list[str]:
    """A subject beside the rule and beside the best fixed setting, a sentence each."""
    said = []
    for which in RIVALS:
        rival, over = result.rival(which), result.over(subject, which)
        if rival is None or over is None or rival == subject:
            continue
        only = "the only fixed setting here" if has_one_fixed(result) else "the best fixed setting in hindsight"
        named = f"{rival}, {only}" if which == "best_fixed" else rival
        figures = _on_axes(over.broken, over.best_effort, over.cpu, result.has_edge)
        said.append(f"{_RELATE[over.relation].format(subject, named)}{_why_neither(over)}: {figures}.")
    return said


def has_one_fixed(result: ScenarioResult) -> bool:
    """Whether there is a single fixed setting, which is no choice of the best."""
    return sum(agent.role == "fixed" for agent in result.rivals) == 1


def too_few(results: Sequence[ScenarioResult]) -> str:
    """A warning for fewer than `FEW_SEEDS` seeds; empty for as many or more."""
    least = min(result.seeds for result in results)
    return f"{count(least, 'seed')}: too few to tell agents apart" if least < FEW_SEEDS else ""


def _why_neither(over: Over) -> str:
    """The axes on which an agent is worse and better, in brackets, where neither agent dominates."""
    if over.relation != "neither":
        return ""
    sides = {"worse": over.worse_on(), "better": over.better_on()}
    said = [f"{word} on {', '.join(AXIS_WORDS[axis] for axis in axes)}" for word, axes in sides.items() if axes]
    if len(said) == 1:
        said.append("by too little to dominate" if sides["better"] else "by too little to be dominated")
    return f" ({'; '.join(said)})" if said else ""


def _on_axes(broken: float, best_effort: float, cpu: float, edge: bool = False) -> str:
    share, of_what = (1.0 / cpu, "edge application's work") if edge else (cpu, "wasted CPU")
    return f"{_times('broken', broken)} broken seconds, {_points(best_effort)}, {_times('cpu', share)} {of_what}"


def _times(axis: Axis, ratio: float) -> str:
    """``0.95 of its`` up to 2, ``74 times its`` above."""
    return f"{ratio:.{0 if ratio >= 9.95 else 1}f} times its" if ratio > 2.0 else f"{shown(axis, ratio)} of its"


def _points(best_effort: float) -> str:
    """What is gained of best effort as a loss that is higher or lower."""
    points = shown("best_effort", abs(best_effort)).removeprefix("+")
    if float(points) == 0.0:
        return "the same best-effort loss"
    return f"best-effort loss {points} points {'higher' if best_effort < 0 else 'lower'}"


def headline(results: Sequence[ScenarioResult], subject: str) -> list[str]:
    """A subject over all scenarios, beside the rule and beside the best fixed settings."""
    if len(results) == 1:
        return sentences(results[0], subject)
    return [_over_all(row) for row in beside_rivals(results, subject)]


def _over_all(row: AgainstRival) -> str:
    often = {name: sum(over.relation == name for over in row.overs) for name in RELATIONS}
    middle = _on_axes(row.median("broken"), row.median("best_effort"), row.median("cpu"))
    return (
        f"{row.agent} dominates {RIVALS[row.rival]} in {often['dominates']} of {count(len(row.overs), 'scenario')}, "
        f"equals it in {often['equal']}, is dominated in {often['dominated']}, "
        f"and neither in {often['neither']}{_worse_in(row)}. "
        f"Medians: {middle}."
    )


def _worse_in(row: AgainstRival) -> str:
    """In how many of the scenarios where neither dominates an agent is worse on each axis."""
    open_ones = [over for over in row.overs if over.relation == "neither"]
    often: dict[Axis, int] = {axis: sum(axis in over.worse_on() for over in open_ones) for axis in AXES}
    said = [f"{AXIS_WORDS[axis]} in {number}" for axis, number in often.items() if number]
    return f" (worse there on {', '.join(said)})" if said else ""


def worst_of(row: AgainstRival) -> str:
    """The worst scenarios of an agent beside a rival, in a sentence."""
    (broken_in, broken), (effort_in, effort), (cpu_in, cpu) = (row.worst(axis) for axis in AXES)
    return (
        f"{row.agent} at worst against {RIVALS[row.rival]}: {_times('broken', broken)} broken seconds "
        f"({broken_in}), {_points(effort)} ({effort_in}), {_times('cpu', cpu)} wasted CPU ({cpu_in})."
    )


def short_list(result: ScenarioResult) -> list[AgentResult]:
    """The featured agents and those that break promises least, without agents of equal results.

    Subjects come first, then the order is that of broken promises.
    """
    ranked = sorted(result.rivals, key=lambda a: (a.name not in result.featured, a.mean(BROKEN_S)))
    chosen: dict[object, AgentResult] = {}
    for agent in ranked:
        chosen.setdefault(agent.name if agent.name in result.featured else figures_shown(agent), agent)
    same = {figures_shown(a) for a in chosen.values() if a.name in result.featured}
    kept = [a for a in chosen.values() if a.name in result.featured or figures_shown(a) not in same][:SHORT_LIST]
    return sorted(kept, key=lambda a: (a.name not in result.subjects, a.mean(BROKEN_S)))


def figures_shown(agent: AgentResult) -> tuple[float, ...]:
    """Scores rounded to a tenth: many published settings have the same."""
    return tuple(round(agent.mean(key), 1) for key in (BROKEN_S, BEST_EFFORT_LOSS, CPU_WASTED))


def relation_word(result: ScenarioResult, name: str, which: Rival) -> str:
    """For a table: how an agent relates to a rival; a dash for the rival itself and without a rival."""
    over = result.over(name, which)
    return "-" if over is None or result.rival(which) == name else over.relation
