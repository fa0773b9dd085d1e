"""Limits that a node's operator sets for SliceSets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .assignment import Trouble
from .plan import SetPlan

LIMIT_KEPT, NOT_FOLLOWED = "LimitKept", "NotFollowed"


@dataclass(frozen=True)
class Allowance:
    """The operator's options.

    Attributes:
        highest_mode: a SliceSet that asks for a higher mode (`MODES`) has a loop in shadow.
        loops, loops_in_namespace: most loops of this node. Each takes some 100 MiB, and a real-time thread.
        exceed_limit: whether `mayExceedLimit` counts: a pod's CPU limit is its namespace's share of the node.
        follow: whether pods follow their loops at the API server: resizes and annotations of any pod on the node.
        records_mb: disk space for the decision records of each loop.
    """

    highest_mode: str = "shadow"
    loops: int = 8
    loops_in_namespace: int = 4
    exceed_limit: bool = False
    follow: bool = False
    records_mb: float = 64.0


class Admission:
    """Applies an allowance to successive plans. A running loop is not ended in favour of an older SliceSet."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._running: frozenset[str] = frozenset()

    def admit(self, plans: Iterable[SetPlan]) -> list[SetPlan]:
        """The plans as far as they are allowed, in order; older SliceSets have precedence."""
        allowed = self._allowance
        held = [plan if allowed.follow else _without_follow(plan) for plan in plans]
        held = [_within_limits(plan, allowed.exceed_limit) for plan in held]
        by_namespace: dict[str, int] = {}
        admitted: set[str] = set()
        for plan in sorted(held, key=lambda item: item.identity.uid not in self._running):
            count = by_namespace.get(plan.identity.namespace, 0)
            if plan.loop is not None and len(admitted) < allowed.loops and count < allowed.loops_in_namespace:
                admitted.add(plan.identity.uid)
                by_namespace[plan.identity.namespace] = count + 1
        self._running = frozenset(admitted)
        text = (
            f"this node's agent runs at most {allowed.loops} loops, and {allowed.loops_in_namespace} of a namespace; "
            "others have them (options --most-loops and --most-loops-in-namespace)"
        )
        return [
            plan if plan.loop is None or plan.identity.uid in admitted else replace(plan, over_limit=text, loop=None)
            for plan in held
        ]


def _within_limits(plan: SetPlan, exceed_limit: bool) -> SetPlan:
    """Without the right to exceed the pods' limits unless it is allowed, and with a trouble for each slice that asks
    for it. A slice that is followed has the right up to its ceiling: its pod's limit is moved as well."""
    if plan.loop is None:
        return plan
    slices, troubles = [], list(plan.troubles)
    text = "mayExceedLimit: not allowed by this node's agent (option --allow-exceed-limit); its pod's limit is kept"
    for item in plan.loop.node["slices"]:
        followed = "ceiling_mcpu" in item
        if item["may_exceed_limit"] and not (followed or exceed_limit):
            troubles.append(Trouble(item["name"], LIMIT_KEPT, f"slice {item['name']}: {text}"))
        slices.append({**item, "may_exceed_limit": followed or (item["may_exceed_limit"] and exceed_limit)})
    node = {**plan.loop.node, "slices": slices}
    return replace(plan, troubles=tuple(troubles), loop=replace(plan.loop, node=node))


def _without_follow(plan: SetPlan) -> SetPlan:
    """Without pods that follow, and with a trouble for each slice that asks for it."""
    if not plan.follows:
        return plan
    text = "follow: not allowed by this node's agent (option --allow-follow)"
    troubles = tuple(Trouble(name, NOT_FOLLOWED, f"slice {name}: {text}") for name in plan.follows)
    plan = replace(plan, follows={}, troubles=plan.troubles + troubles)
    if plan.loop is None:
        return plan
    slices = [{key: value for key, value in item.items() if key != "ceiling_mcpu"} for item in plan.loop.node["slices"]]
    run = {key: value for key, value in plan.loop.run.items() if key != "foreign"}
    return replace(plan, loop=replace(plan.loop, node={**plan.loop.node, "slices": slices}, run=run))
