"""A node for the guard's tests: allowed knobs hold at the next tick."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slicepilot.configs import validate
from slicepilot.controller.contracts.modes import Level
from slicepilot.controller.contracts.reasons import Reason, names
from slicepilot.controller.guard.config import GuardConfig
from slicepilot.controller.guard.guard import Guard, GuardDecision
from slicepilot.env.arrays import BoolArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs, NiceScope
from slicepilot.env.slices import KnobBounds, Promises, Sla, SliceSet, SliceSpec, SNssai
from slicepilot.env.telemetry import Telemetry

PERIOD_S = 0.01
NONE = math.inf
BOUNDS = KnobBounds((50.0, 1000.0), (-15, 15), (1.0, 1000.0))


def slice_set(count: int = 3, committed_mbps: float = 10.0) -> SliceSet:
    """``s0`` weighs most."""
    sla = Sla(committed_mbps, 5.0)
    specs = [SliceSpec(f"s{k}", SNssai(1, f"{k:06X}"), sla, 3.0 - (k > 0), bounds=BOUNDS) for k in range(count)]
    return SliceSet(tuple(specs))


def context(
    slices: SliceSet,
    period_s: float = PERIOD_S,
    cpus: float = 2.0,
    uplink_mbps: float = 100.0,
    moves: BoolArray | None = None,
) -> Context:
    period, logical, uplink = (np.full(1, value, np.float32) for value in (period_s, cpus, uplink_mbps))
    return Context(period, logical, uplink, Promises.of(slices), slices.column("upf_threads"), 1, moves=moves)


def config(**sections: Any) -> GuardConfig:
    """Defaults, but measurements may stay the same, and neither floors nor the safe setting go by weight."""
    safe = sections.get("safe", {})
    sections["safe"] = safe | {"default": {"nice": 0} | safe.get("default", {})}
    sections["sla_floor"] = {"by_weight": False} | sections.get("sla_floor", {})
    sections["telemetry"] = {"frozen_ticks": None} | sections.get("telemetry", {})
    return validate(GuardConfig, sections, "test")


def knobs(limit: Any = NONE, nice: Any = 0.0, egress: Any = NONE, count: int = 3, scope: NiceScope = "group") -> Knobs:
    columns = [np.empty((count, 1), np.float32) for _ in range(3)]
    for column, values in zip(columns, (limit, nice, egress), strict=True):
        column[:, 0] = values
    return Knobs.of(columns[0], columns[1], columns[2], scope)


class Node:
    """What is let through holds at the next tick; measurements are good until they are changed."""

    def __init__(self, given: GuardConfig | None = None, slices: SliceSet | None = None, **facts: Any) -> None:
        self.slices = slices or slice_set()
        self.guard = Guard(given or config(), self.slices, context(self.slices, **facts))
        self.telemetry = Telemetry.empty(len(self.slices))
        self.telemetry.offered_mbps[:] = self.telemetry.carried_mbps[:] = 10.0
        self.held, self.now_ns = Knobs.none(len(self.slices)), 1_000_000_000_000
        self.period_ns = round(1e9 * facts.get("period_s", PERIOD_S))
        self.last: GuardDecision

    def tick(self, wanted: Knobs | None, ticks: int = 1) -> GuardDecision:
        for _ in range(ticks):
            self.last = self.guard.judge(self.telemetry, wanted, self.held, self.now_ns)
            self.held = self.last.allowed
            self.now_ns += self.period_ns
        return self.last

    def level_of(self, index: int = 0) -> Level:
        """A slice's at the last tick: its own, or else the node's."""
        if self.guard.level >= Level.SAFE:
            return self.guard.level
        reasons = self.last.reasons[index].item()
        own = Level.SAFE if reasons & Reason.SAFE_SETTING.bit else self.guard.level
        return Level.LATCHED if reasons & Reason.LATCHED.bit else own

    def until(self, level: Level, wanted: Knobs | None, most: int = 10_000, index: int = 0) -> float:
        """Seconds from the first tick to the one at which a slice has the level."""
        for n in range(most):
            self.tick(wanted)
            if self.level_of(index) is level:
                return n * PERIOD_S
        raise AssertionError(f"never {level.label}")

    def starved_until(self, level: Level, wanted: Knobs | None, most: int = 10_000) -> float:
        """Seconds to a level of slice 0, which is starved as long as the policy is followed for it."""
        for n in range(most):
            safe = n > 0 and self.level_of() >= Level.SAFE
            self.telemetry.carried_mbps[0] = 10.0 if safe else 1.0
            self.tick(wanted)
            if self.level_of() is level:
                self.telemetry.carried_mbps[0] = 10.0
                return n * PERIOD_S
        raise AssertionError(f"never {level.label}")

    def why(self, index: int = 0) -> list[str]:
        return names(self.last.reasons[index].item())

    def why_node(self) -> list[str]:
        return names(self.last.node_reasons)


def column(verdict: GuardDecision, knob: str = "cpu_limit_mcpu") -> list[float]:
    values: list[float] = getattr(verdict.allowed, knob)[:, 0].tolist()
    return values


FAST: dict[str, Any] = {"dwell": {"cpu_limit_s": 0, "nice_s": 0, "egress_s": 0}}
"""Without rests."""
AT_ONCE: dict[str, Any] = FAST | {
    "slew": {"cpu_limit_per_s": 1e6, "egress_per_s": 1e6, "nice_levels_per_s": 1e6},
    "oscillation": {"reversals": 1000},
}
