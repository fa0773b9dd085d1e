"""What the operator of a node allows those who write SliceSets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .placing import Trouble
from .plan import SetPlan

LIMIT_KEPT, NOT_FOLLOWED = "LimitKept", "NotFollowed"


@dataclass(frozen=True)
class Allowance:
    """By options of the agent.

    Attributes:
        highest_mode: the most that a SliceSet may do here (`MODES`); one that asks for more has a loop in shadow.
        loops, loops_in_namespace: at most, of this node. Each takes some 100 MiB, and a real-time thread.
        exceed_limit: whether `mayExceedLimit` counts: a pod's CPU limit is its namespace's share of the node.
        follow: whether pods follow their loops at the API server: resizes and annotations of any pod on the node.
        records_mb: disk space for the decision records of one loop.
    """

    highest_mode: str = "shadow"
    loops: int = 8
    loops_in_namespace: int = 4
    exceed_limit: bool = False
    follow: bool = False
    records_mb: float = 64.0


class Allowing:
    """Holds plans to it, again and again: what has a loop keeps it beside an older SliceSet that wants one."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._running: frozenset[str] = frozenset()

    def hold(self, plans: Iterable[SetPlan]) -> list[SetPlan]:
        """The same plans as far as they are allowed, in order; those that are older come first."""
        allowed = self._allowance
        held = [plan if allowed.follow else _not_followed(plan) for plan in plans]
        held = [plan if allowed.exceed_limit else _within_limits(plan) for plan in held]
        by_namespace: dict[str, int] = {}
        granted: set[str] = set()
        for plan in sorted(held, key=lambda one: one.who.uid not in self._running):
            if plan.loop is None:
                continue
            before = by_namespace.get(plan.who.namespace, 0)
            if len(granted) < allowed.loops and before < allowed.loops_in_namespace:
                granted.add(plan.who.uid)
                by_namespace[plan.who.namespace] = before + 1
        self._running = frozenset(granted)
        return [plan if plan.loop is None or plan.who.uid in granted else self._crowded(plan) for plan in held]

    def _crowded(self, plan: SetPlan) -> SetPlan:
        allowed = self._allowance
        text = (
            f"this node's agent runs {allowed.loops} loops at most, and {allowed.loops_in_namespace} of a namespace, "
            "which others have (options --most-loops and --most-loops-in-namespace)"
        )
        return replace(plan, crowded=text, loop=None)


def _within_limits(plan: SetPlan) -> SetPlan:
    """Without what only an operator may allow, which is told."""
    if plan.loop is None:
        return plan
    slices = plan.loop.node["slices"]
    # One that is followed says by itself how far: the pod's limit is moved as well.
    names = [one["name"] for one in slices if one.get("may_exceed_limit") and "ceiling_mcpu" not in one]
    if not names:
        return plan
    text = "mayExceedLimit: not allowed by this node's agent (option --allow-exceed-limit); its pod's limit is kept"
    troubles = tuple(Trouble(name, LIMIT_KEPT, f"slice {name}: {text}") for name in names)
    kept = [{**one, "may_exceed_limit": False} if one["name"] in names else one for one in slices]
    node = {**plan.loop.node, "slices": kept}
    return replace(plan, troubles=plan.troubles + troubles, loop=replace(plan.loop, node=node))


def _not_followed(plan: SetPlan) -> SetPlan:
    """Likewise."""
    if not plan.follows:
        return plan
    text = "follow: not allowed by this node's agent (option --allow-follow)"
    troubles = tuple(Trouble(name, NOT_FOLLOWED, f"slice {name}: {text}") for name in plan.follows)
    plan = replace(plan, follows={}, troubles=plan.troubles + troubles)
    if plan.loop is None:
        return plan
    slices = [
        {key: value for key, value in one.items() if key != "ceiling_mcpu"} | {"may_exceed_limit": False}
        if "ceiling_mcpu" in one
        else one
        for one in plan.loop.node["slices"]
    ]
    run = {key: value for key, value in plan.loop.run.items() if key != "foreign"}
    return replace(plan, loop=replace(plan.loop, node={**plan.loop.node, "slices": slices}, run=run))
