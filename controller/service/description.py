"""The description of a run for all readers of its ticks, and its trips."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from slicepilot.controller.contracts.latches import slice_remedy, trip_text
from slicepilot.controller.guard.config import GuardConfig
from slicepilot.controller.guard.guard import Guard
from slicepilot.controller.loop.node import Node
from slicepilot.env.knobs import KNOB_FIELDS

if TYPE_CHECKING:
    from .loaded_policy import LoadedPolicy


def description_of(node: Node, policy: LoadedPolicy, guard: GuardConfig) -> dict[str, Any]:
    """Node, policy and guard as JSON; None stands for what has no limit."""
    context = node.backend.context
    return {
        "name": node.name,
        "version": metadata.version("slicepilot"),
        "backend": node.kind,
        "agent": policy.agent.name,
        "bundle": policy.bundle,
        "slice_set": dataclasses.asdict(node.backend.slices),
        "period_s": context.period_s.item(),
        "logical_cpus": context.logical_cpus.item(),
        "uplink_mbps": _finite(context.uplink_mbps.item()),
        "fixed": _fixed(node),
        "threads": context.threads[:, 0].tolist(),
        "pid": os.getpid(),
        "nice_scope": policy.nice_scope,
        "hardware": node.hardware,
        "guard": _finite(dataclasses.asdict(guard)),
    }


def trips_of(guard: Guard, names: Sequence[str]) -> list[dict[str, Any]]:
    """`answers.Trip` of each slice that has its safe setting; the guard's clock is CLOCK_MONOTONIC."""
    since_1970_ns, trips = time.time_ns() - time.monotonic_ns(), []
    for trip in guard.tripped:
        facts = trip._asdict()
        name, time_ns = names[facts.pop("slice_index")], facts.pop("began_ns") + since_1970_ns
        facts["time_ns"] = time_ns
        remedy = slice_remedy(time_ns) if trip.latched else None
        trips.append({"slice": name, **facts, "text": trip_text(**facts), "remedy": remedy})
    return trips


def _fixed(node: Node) -> dict[str, list[str]]:
    """By slice, knobs that are never moved here."""
    moves, names = node.backend.context.moves, node.backend.slices.names
    if moves is None:
        return {}
    return {name: [KNOB_FIELDS[k] for k in np.flatnonzero(~moves[:, s, 0])] for s, name in enumerate(names)}


def _finite(value: Any) -> Any:
    """The same for JSON, which has no infinity."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
