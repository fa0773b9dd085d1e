"""Between the loops of a node and what the API server is told of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from slicepilot.cluster.loops.keeper import LoopState
from slicepilot.cluster.plan.allowance import NOT_FOLLOWED
from slicepilot.cluster.plan.placing import Trouble
from slicepilot.cluster.plan.plan import ACTING, SetPlan

from .tier import Followed, Key


def followed(plans: Iterable[SetPlan], states: Mapping[str, LoopState]) -> dict[Key, Followed]:
    """Slices whose loops act, or are about to, with what these have set."""
    found: dict[Key, Followed] = {}
    for plan in plans:
        if plan.loop is None or plan.loop.mode not in ACTING:
            continue
        state = states.get(plan.who.uid)
        figures = None if state is None or state.figures is None or state.figures.stale else state.figures
        named = {one.name: one for one in (() if figures is None else figures.slices)}
        for name, follow in plan.follows.items():
            if name not in plan.places or (plan.loop.canary and name not in plan.loop.canary):
                continue
            place, one = plan.places[name], named.get(name)
            knobs = None if one is None or one.in_charge == "nobody" else one.knobs
            limit, rate = (
                None if knobs is None else _or_none(knobs.get(field)) for field in ("cpu_limit_mcpu", "egress_mbps")
            )
            found[plan.who.uid, name] = Followed(plan.who.generation, place.pod, place.container, follow, limit, rate)
    return found


def told(plans: Iterable[SetPlan], troubles: Mapping[Key, str]) -> list[SetPlan]:
    """Plans with the troubles of their slices."""
    found = []
    for plan in plans:
        keys = [(plan.who.uid, name) for name in plan.follows]
        mine = tuple(
            Trouble(key[1], NOT_FOLLOWED, f"slice {key[1]}: {troubles[key]}") for key in keys if key in troubles
        )
        found.append(dataclasses.replace(plan, troubles=plan.troubles + mine) if mine else plan)
    return found


def _or_none(value: float | None) -> float:
    """A limit that there is not is shown as None."""
    return math.inf if value is None else value
