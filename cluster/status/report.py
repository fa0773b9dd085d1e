"""The report on a SliceSet on this node: conditions, and figures of its slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slicepilot.cluster.loops.manager import LoopState
from slicepilot.cluster.loops.reading import LoopFigures, SliceFigures
from slicepilot.cluster.plan.assignment import AWAY
from slicepilot.cluster.plan.plan import ACTING, SetPlan
from slicepilot.cluster.resources.names import snake

from .conditions import CONTROLLED, DEGRADED, READY, Condition

KNOBS = ("cpuLimitMcpu", "nice", "egressMbps")
STARTING, NOT_ALLOWED, NOT_PROMOTED = "LoopStarting", "ModeNotAllowed", "NotPromoted"


@dataclass(frozen=True)
class Report:
    """The report on a SliceSet.

    Attributes:
        conditions: in order.
        body: the rest of its status.
        vital: is written at once when it changes; figures can wait.
    """

    conditions: tuple[Condition, ...]
    body: dict[str, Any]
    vital: tuple[Any, ...]


def report(plan: SetPlan, state: LoopState | None) -> Report:
    """The report on a plan and its loop."""
    figures = None if state is None or plan.loop is None else state.figures
    named = {item.name: item for item in (() if figures is None else figures.slices)}
    slices = [_slice(name, item.pod.name, named.get(name)) for name, item in plan.pods.items()]
    kept = sum(1 for item in slices if item.get("promiseKept"))
    conditions = (_ready(plan, state, figures), _controlled(plan, figures), _degraded(plan, state, figures))
    body: dict[str, Any] = {"kept": f"{kept}/{len(slices)}", "keptSlices": kept, "slices": slices}
    if figures is not None:
        body |= {"mode": figures.mode, "agent": figures.agent}
    pods = tuple((name, item.pod.uid) for name, item in plan.pods.items())
    vital = (plan.identity.generation, tuple(item.state for item in conditions), body.get("mode"), pods)
    return Report(conditions, body, vital)


def _ready(plan: SetPlan, state: LoopState | None, figures: LoopFigures | None) -> Condition:
    if plan.invalid is not None:
        return Condition(READY, "False", "Invalid", plan.invalid)
    if plan.missing is not None and plan.loop is None and plan.over_limit is None:
        return Condition(READY, "False", plan.missing.reason, plan.missing.message)
    if plan.over_limit is not None:
        return Condition(READY, "False", "TooManyLoops", plan.over_limit)
    if plan.loop is None:
        return Condition(READY, "False", "NoPods", "; ".join(trouble.message for trouble in plan.troubles))
    if figures is not None and not figures.stale:
        return Condition(READY, "True", "LoopRunning", f"{len(plan.pods)} slices, {figures.agent}")
    if state is not None and state.failure is not None:
        return Condition(READY, "False", "LoopFailed", state.failure)
    if figures is not None:
        return Condition(READY, "False", "LoopSilent", "the loop has not reported for seconds")
    return Condition(READY, "False", STARTING, "the loop is being started")


def _controlled(plan: SetPlan, figures: LoopFigures | None) -> Condition:
    if figures is None or figures.stale:
        return Condition(CONTROLLED, "False", "NoLoop", "knobs have their original values")
    if plan.refused_mode is not None:
        return Condition(CONTROLLED, "False", NOT_ALLOWED, plan.refused_mode)
    if plan.unpromoted is not None and figures.mode not in ACTING:
        return Condition(CONTROLLED, "False", NOT_PROMOTED, plan.unpromoted)
    if figures.mode not in ACTING:
        return Condition(CONTROLLED, "False", "Shadow", "decisions are recorded and not carried out")
    if figures.mode == "canary":
        return Condition(CONTROLLED, "True", "Canary", f"acting on {', '.join(figures.canary)}")
    return Condition(CONTROLLED, "True", "Live", "acting on all slices")


def _degraded(plan: SetPlan, state: LoopState | None, figures: LoopFigures | None) -> Condition:
    """The condition has the reason of the most serious trouble; its message lists all."""
    reasons: list[tuple[str, str]] = []
    if plan.invalid is not None:
        reasons.append(("Invalid", plan.invalid))
    if state is not None and state.failure is not None:
        reasons.append(("LoopFailed", state.failure))
    if state is not None and state.refused is not None:
        reasons.append(("ModeRefused", state.refused))
    if plan.refused_mode is not None:
        reasons.append((NOT_ALLOWED, plan.refused_mode))
    if plan.missing is not None:
        before = "" if plan.loop is None else "; its loop goes on with the previous bundle and rules"
        reasons.append((plan.missing.reason, plan.missing.message + before))
    if plan.unpromoted is not None:
        reasons.append((NOT_PROMOTED, plan.unpromoted))
    reasons += [(trouble.reason, trouble.message) for trouble in plan.troubles]
    if figures is not None:
        away = {trouble.slice for trouble in plan.troubles if trouble.reason == AWAY}
        reasons += [("NotMeasured", line) for line in figures.unmeasured if line.partition(":")[0] not in away]
        safe = [item.name for item in figures.slices if item.safe]
        if safe:
            reasons.append(("SafeSetting", f"{', '.join(safe)}: below a service floor, so their safe setting holds"))
    if not reasons:
        return Condition(DEGRADED, "False", "AsDeclared")
    return Condition(DEGRADED, "True", reasons[0][0], "; ".join(text for _, text in reasons))


def _slice(name: str, pod: str, figures: SliceFigures | None) -> dict[str, Any]:
    document: dict[str, Any] = {"name": name, "pod": pod}
    if figures is None:
        return document
    document |= {
        "measured": figures.measured,
        "promiseKept": figures.kept,
        "keptPercent": figures.kept_percent,
        "inCharge": figures.in_charge,
    }
    values = {"offeredMbps": figures.offered_mbps, "carriedMbps": figures.carried_mbps, "p99Ms": figures.p99_ms}
    document |= {key: _rounded(value) for key, value in values.items() if value is not None}
    if figures.knobs is not None:
        values = {key: figures.knobs.get(snake(key)) for key in KNOBS}
        document["knobs"] = {key: _rounded(value) for key, value in values.items() if value is not None}
    return document


def _rounded(value: float) -> float | int:
    """Three significant digits: more would change with every reading."""
    number = float(f"{value:.3g}")
    return int(number) if number == int(number) else number
