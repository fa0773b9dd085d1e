"""Sentences about a judged agent, its gains and its losses, and the agents that a report shows."""

from __future__ import annotations

from collections.abc import Sequence

from .axes import AXES, RELATIONS, shown
from .comparison import RIVALS, AgentResult, Rival, ScenarioResult
from .scores import BEST_EFFORT_LOSS, BROKEN_S, CPU_WASTED
from .suite import AgainstRival, against

SHORT_LIST = 12
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
        named = f"{rival}, the best fixed setting in hindsight" if which == "best_fixed" else rival
        figures = _on_axes(over.broken, over.best_effort, over.cpu, result.has_edge)
        said.append(f"{_RELATE[over.relation].format(subject, named)}: {figures}.")
    return said


def _on_axes(broken: float, best_effort: float, cpu: float, edge: bool = False) -> str:
    share, of_what = (1.0 / cpu, "edge application's work") if edge else (cpu, "wasted CPU")
    points = shown("best_effort", best_effort)
    cpu_said = f"{shown('cpu', share)} of its {of_what}"
    return f"{shown('broken', broken)} of its broken seconds, best effort {points} points, {cpu_said}"


def headline(results: Sequence[ScenarioResult], subject: str) -> list[str]:
    """A subject over all scenarios, beside the rule and beside the best fixed settings."""
    if len(results) == 1:
        return sentences(results[0], subject)
    rows = [against(results, subject, which) for which in RIVALS]
    return [_over_all(row) for row in rows if row is not None and RIVALS[row.rival] != subject]


def _over_all(row: AgainstRival) -> str:
    often = {name: sum(over.relation == name for over in row.overs) for name in RELATIONS}
    middle = _on_axes(row.median("broken"), row.median("best_effort"), row.median("cpu"))
    return (
        f"{row.agent} dominates {RIVALS[row.rival]} in {often['dominates']} of {count(len(row.overs), 'scenario')}, "
        f"equals it in {often['equal']}, is dominated in {often['dominated']}, and neither in {often['neither']}. "
        f"Medians: {middle}."
    )


def worst_of(row: AgainstRival) -> str:
    """The worst scenarios of an agent beside a rival, in a sentence."""
    (broken_in, broken), (effort_in, effort), (cpu_in, cpu) = (row.worst(axis) for axis in AXES)
    return (
        f"{row.agent} at worst against {RIVALS[row.rival]}: {shown('broken', broken)} of its broken seconds "
        f"({broken_in}), best effort {shown('best_effort', effort)} points ({effort_in}), "
        f"{shown('cpu', cpu)} of its wasted CPU ({cpu_in})."
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
