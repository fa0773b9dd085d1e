"""What an agent says of a SliceSet on its node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slicepilot.cluster.loops.keeper import LoopState
from slicepilot.cluster.loops.reading import LoopFigures, SliceFigures
from slicepilot.cluster.plan.placing import AWAY
from slicepilot.cluster.plan.plan import ACTING, Forbidden, SetPlan
from slicepilot.cluster.resources.names import snake

from .conditions import CONTROLLED, DEGRADED, READY, Condition

KNOBS = ("cpuLimitMcpu", "nice", "egressMbps")
STARTING, NOT_ALLOWED, NOT_PROMOTED = "LoopStarting", "ModeNotAllowed", "NotPromoted"


@dataclass(frozen=True)
class Report:
    """Of one SliceSet.

    Attributes:
        conditions: in order.
        body: the rest of its status.
        vital: what has to be told at once when it changes; figures can wait.
    """

    conditions: tuple[Condition, ...]
    body: dict[str, Any]
    vital: tuple[Any, ...]


def report(plan: SetPlan, state: LoopState | None) -> Report:
    """What there is to say."""
    figures = None if state is None or plan.loop is None else state.figures
    named = {one.name: one for one in (() if figures is None else figures.slices)}
    slices = [_slice(name, place.pod.name, named.get(name)) for name, place in plan.places.items()]
    kept = sum(1 for one in slices if one.get("promiseKept"))
    conditions = (_ready(plan, state, figures), _controlled(plan, figures), _degraded(plan, state, figures))
    body: dict[str, Any] = {"kept": f"{kept}/{len(slices)}", "keptSlices": kept, "slices": slices}
    if figures is not None:
        body |= {"mode": figures.mode, "agent": figures.agent}
    pods = tuple((name, place.pod.uid) for name, place in plan.places.items())
    vital = (plan.who.generation, tuple(one.state for one in conditions), body.get("mode"), pods)
    return Report(conditions, body, vital)


def _ready(plan: SetPlan, state: LoopState | None, figures: LoopFigures | None) -> Condition:
    if plan.invalid is not None:
        return Condition(READY, "False", "Invalid", plan.invalid)
    if plan.missing is not None and plan.loop is None and plan.crowded is None:
        return Condition(READY, "False", plan.missing.reason, plan.missing.message)
    if plan.crowded is not None:
        return Condition(READY, "False", "TooManyLoops", plan.crowded)
    if plan.loop is None:
        return Condition(READY, "False", "NoPods", "; ".join(one.message for one in plan.troubles))
    if figures is not None and not figures.stale:
        return Condition(READY, "True", "LoopRunning", f"{len(plan.places)} slices, {figures.agent}")
    if state is not None and state.failure is not None:
        return Condition(READY, "False", "LoopFailed", state.failure)
    if figures is not None:
        return Condition(READY, "False", "LoopSilent", "the loop gives no sign of life")
    return Condition(READY, "False", STARTING, "the loop is being started")


def _controlled(plan: SetPlan, figures: LoopFigures | None) -> Condition:
    if figures is None or figures.stale:
        return Condition(CONTROLLED, "False", "NoLoop", "knobs are as they were found")
    if plan.forbidden is not None:
        return Condition(CONTROLLED, "False", NOT_ALLOWED, _not_allowed(plan.forbidden))
    if plan.unpromoted is not None and figures.mode not in ACTING:
        return Condition(CONTROLLED, "False", NOT_PROMOTED, plan.unpromoted)
    if figures.mode not in ACTING:
        return Condition(CONTROLLED, "False", "Shadow", "decisions are recorded and not carried out")
    if figures.mode == "canary":
        return Condition(CONTROLLED, "True", "Canary", f"acting on {', '.join(figures.canary)}")
    return Condition(CONTROLLED, "True", "Live", "acting on all slices")


def _not_allowed(found: Forbidden) -> str:
    return f"mode {found.mode} is declared; this node's agent allows {found.highest} at most (--highest-mode)"


def _degraded(plan: SetPlan, state: LoopState | None, figures: LoopFigures | None) -> Condition:
    """The gravest trouble's reason; the message has all."""
    found: list[tuple[str, str]] = []
    if plan.invalid is not None:
        found.append(("Invalid", plan.invalid))
    if state is not None and state.failure is not None:
        found.append(("LoopFailed", state.failure))
    if state is not None and state.refused is not None:
        found.append(("ModeRefused", state.refused))
    if plan.forbidden is not None:
        found.append((NOT_ALLOWED, _not_allowed(plan.forbidden)))
    if plan.missing is not None:
        before = "" if plan.loop is None else "; its loop goes on with what it had"
        found.append((plan.missing.reason, plan.missing.message + before))
    if plan.unpromoted is not None:
        found.append((NOT_PROMOTED, plan.unpromoted))
    found += [(one.reason, one.message) for one in plan.troubles]
    if figures is not None:
        away = {one.slice for one in plan.troubles if one.reason == AWAY}
        found += [("NotMeasured", line) for line in figures.unmeasured if line.partition(":")[0] not in away]
        safe = [one.name for one in figures.slices if one.safe]
        if safe:
            found.append(("SafeSetting", f"{', '.join(safe)}: below a service floor, so their safe setting holds"))
    if not found:
        return Condition(DEGRADED, "False", "AsDeclared")
    return Condition(DEGRADED, "True", found[0][0], "; ".join(text for _, text in found))


def _slice(name: str, pod: str, one: SliceFigures | None) -> dict[str, Any]:
    document: dict[str, Any] = {"name": name, "pod": pod}
    if one is None:
        return document
    document |= {
        "measured": one.measured,
        "promiseKept": one.kept,
        "keptPercent": one.kept_percent,
        "inCharge": one.in_charge,
    }
    figures = {"offeredMbps": one.offered_mbps, "carriedMbps": one.carried_mbps, "p99Ms": one.p99_ms}
    document |= {key: _rounded(value) for key, value in figures.items() if value is not None}
    if one.knobs is not None:
        values = {key: one.knobs.get(snake(key)) for key in KNOBS}
        document["knobs"] = {key: _rounded(value) for key, value in values.items() if value is not None}
    return document


def _rounded(value: float) -> float | int:
    """Three digits: more would change with each look, and say no more."""
    number = float(f"{value:.3g}")
    return int(number) if number == int(number) else number
