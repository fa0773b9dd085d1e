"""Between the loops of a node and `PodSync`: which pods follow, and the troubles of those that cannot."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from slicepilot.cluster.loops.manager import LoopState
from slicepilot.cluster.plan.allowance import NOT_FOLLOWED
from slicepilot.cluster.plan.assignment import Trouble
from slicepilot.cluster.plan.plan import ACTING, SetPlan

from .pod_sync import Followed, Key


def followed_pods(plans: Iterable[SetPlan], states: Mapping[str, LoopState]) -> dict[Key, Followed]:
    """Slices whose loops act, or are about to, with the knobs that these have set."""
    result: dict[Key, Followed] = {}
    for plan in plans:
        if plan.loop is None or plan.loop.mode not in ACTING:
            continue
        state = states.get(plan.identity.uid)
        figures = None if state is None or state.figures is None or state.figures.stale else state.figures
        slices = {item.name: item for item in (() if figures is None else figures.slices)}
        for name, follow in plan.follows.items():
            if name not in plan.pods or (plan.loop.canary and name not in plan.loop.canary):
                continue
            item = slices.get(name)
            limit = rate = None
            if item is not None and item.in_charge != "nobody" and item.knobs is not None:
                limit, rate = (_unlimited(item.knobs.get(knob)) for knob in ("cpu_limit_mcpu", "egress_mbps"))
            result[plan.identity.uid, name] = Followed(
                plan.identity.generation, plan.pods[name].pod, plan.pods[name].container, follow, limit, rate
            )
    return result


def with_troubles(plans: Iterable[SetPlan], troubles: Mapping[Key, str]) -> list[SetPlan]:
    """The plans with the troubles of their slices."""
    return [
        dataclasses.replace(
            plan,
            troubles=plan.troubles
            + tuple(
                Trouble(name, NOT_FOLLOWED, f"slice {name}: {troubles[plan.identity.uid, name]}")
                for name in plan.follows
                if (plan.identity.uid, name) in troubles
            ),
        )
        for plan in plans
    ]


def _unlimited(value: float | None) -> float:
    """A knob without a limit is None in a loop's figures."""
    return math.inf if value is None else value
