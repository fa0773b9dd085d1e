"""Sentences about a judged agent, its wins and its losses alike, and the agents that a report shows."""

from __future__ import annotations

import numpy as np

from .comparison import AgentResult, Comparison, ScenarioResult, SubjectSummary

SHORT_LIST = 12


def count(number: int, what: str) -> str:
    """A number and its noun."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def some_of(names: list[str], most: int = 4) -> str:
    """A list that stops after ``most``."""
    shown = names[:most]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


def ratio(value: float) -> str:
    """Two digits, or the sign of infinity."""
    return f"{value:.2f}" if np.isfinite(value) else "∞"


def headline(subject: str, verdicts: dict[str, SubjectSummary]) -> list[str]:
    """The main results of a subject over all scenarios, the bad ones included."""
    judged = [v for v in verdicts.values() if v.best_fixed]
    if not judged:
        return [f"{subject}: there is no fixed setting to compare with."]
    better = [v for v in judged if v.violation_ratio and v.violation_ratio.high < 1]
    worse = [v for v in judged if v.violation_ratio and v.violation_ratio.low > 1]
    dominated, fixed = sum(len(v.dominated) for v in judged), sum(len(v.fixed) for v in judged)
    alike = len(judged) - len(better) - len(worse)
    scenarios = count(len(judged), "scenario")
    said = [f"Against the fixed setting that is best in hindsight, {subject} breaks promises for less time in "]
    said[0] += f"{len(better)} of {scenarios}, for longer in {len(worse)}, and about as long in {alike}."
    said.append(
        f"It dominates {dominated} of {fixed} pairs of scenario and fixed setting: no worse in the losses of the "
        "priority slice and of the others, and better in one of them."
    )
    beaten = {name: v.beaten_by for name, v in verdicts.items() if v.beaten_by}
    if beaten:
        said.append(
            "It is itself dominated " + "; ".join(f"in {s} by {some_of(rivals)}" for s, rivals in beaten.items()) + "."
        )
    else:
        said.append("No rival dominates it in any scenario.")
    return said


def sentences(result: ScenarioResult, subject: str) -> list[str]:
    """Results of a subject on one scenario, wins and losses alike."""
    v = result.verdict(subject)
    said = [f"{subject} dominates {len(v.dominated)} of {count(len(v.fixed), 'fixed setting')}."]
    if v.not_dominated:
        reasons: dict[str, list[str]] = {}
        for comparison in v.not_dominated:
            reasons.setdefault(_kind_of_loss(comparison.why_not), []).append(comparison.rival)
        said += [f"It does not dominate {some_of(rivals, 8)}: {reason}." for reason, rivals in reasons.items()]
    said.append(f"Dominated by {some_of(v.beaten_by, 8)}." if v.beaten_by else "Not dominated by any agent.")
    if v.best_fixed and v.violation_ratio and v.cpu_ratio:
        best, mine = (result.summary(n, "sla_violation_s").value for n in (v.best_fixed, subject))
        said.append(
            f"Best fixed setting in hindsight: {v.best_fixed}, {best:.1f} weighted seconds of broken promises; "
            f"{subject}: {mine:.1f} (ratio {ratio(v.violation_ratio.value)}, {100 * result.level:.0f}% interval "
            f"{ratio(v.violation_ratio.low)} to {ratio(v.violation_ratio.high)}), "
            f"holding {ratio(v.cpu_ratio.value)} times its CPU."
        )
    if v.edge_ratio:
        said.append(
            f"The edge application gets {ratio(v.edge_ratio.value)} times as much done as under {v.best_fixed} "
            f"({ratio(v.edge_ratio.low)} to {ratio(v.edge_ratio.high)})."
        )
    if v.clairvoyant_gap_pct is not None:
        side = "below" if v.clairvoyant_gap_pct >= 0 else "above"
        gap = abs(v.clairvoyant_gap_pct)
        said.append(f"Its return lies {gap:.1f}% {side} that of the clairvoyant agent, which sees the future.")
    return said


def _kind_of_loss(why_not: str) -> str:
    """The reason without its figures, so that rivals of one kind share a sentence."""
    losers = [whose for whose in ("the priority slice's", "the others'") if whose in why_not]
    return f"{' and '.join(losers)} loss is higher" if losers else why_not


def short_list(result: ScenarioResult) -> list[AgentResult]:
    """The featured agents and those that break promises least, without agents of equal results.

    Subjects come first, then the order is that of broken promises.
    """
    ranked = sorted(result.rivals, key=lambda a: (a.name not in result.featured, a.scores["sla_violation_s"].mean()))
    chosen: dict[object, AgentResult] = {}
    for agent in ranked:
        chosen.setdefault(agent.name if agent.name in result.featured else figures_shown(agent), agent)
    same = {figures_shown(a) for a in chosen.values() if a.name in result.featured}
    kept = [a for a in chosen.values() if a.name in result.featured or figures_shown(a) not in same][:SHORT_LIST]
    return sorted(kept, key=lambda a: (a.name not in result.subjects, a.scores["sla_violation_s"].mean()))


def figures_shown(agent: AgentResult) -> tuple[float, ...]:
    """Scores rounded to a tenth: many published settings have the same."""
    keys = ("slice1_loss_pct", "others_loss_pct", "sla_violation_s", "cpu_held_core_s")
    return tuple(round(float(agent.scores[key].mean()), 1) for key in keys)


def losses(result: ScenarioResult, subject: str) -> list[str]:
    """Where a subject loses on one scenario, one sentence each; empty where it does not."""
    v = result.verdict(subject)
    said = [f"dominated by {some_of(v.beaten_by, 8)}."] if v.beaten_by else []
    if v.violation_ratio and v.violation_ratio.low > 1:
        said.append(f"breaks promises {ratio(v.violation_ratio.value)} times as long as {v.best_fixed}.")
    if v.edge_ratio and v.edge_ratio.high < 1:
        said.append(
            f"the edge application gets {ratio(v.edge_ratio.value)} times as much done as under {v.best_fixed}."
        )
    return [*said, *_slices_worse_off(result, subject, v), *_worst(v)]


def _slices_worse_off(result: ScenarioResult, subject: str, v: SubjectSummary) -> list[str]:
    """Slices whose promise is broken longer than under the best fixed setting, by more than 1% of the run."""
    if v.best_fixed is None:
        return []
    mine, best = (result.agent(name).slice_violation_s for name in (subject, v.best_fixed))
    return [
        f"the promise of {name} is broken for {own:.0f} s instead of {other:.0f} s under {v.best_fixed}."
        for name, own, other in zip(result.slice_names, mine, best, strict=True)
        if own - other > 0.01 * result.duration_s
    ]


def _worst(v: SubjectSummary) -> list[str]:
    """The fixed settings that are furthest from being dominated, one for each kind of loss."""
    results: dict[str, Comparison] = {}
    for comparison in sorted(v.not_dominated, key=lambda c: -max(c.priority.value, c.others.value)):
        results.setdefault(_kind_of_loss(comparison.why_not), comparison)
    return [f"does not dominate {c.rival}: {c.why_not}." for c in results.values()]
