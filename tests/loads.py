"""Runs of constant loads, without a scenario file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slicepilot.env.simulator.backend import SimulatorRun
from slicepilot.env.simulator.exogenous import NodeEvents, Traffic
from slicepilot.env.simulator.hardware import Hardware, HardwareArrays
from slicepilot.env.slices import Promises, Sla, SliceSet, SliceSpec, SNssai

# 2 cores, 4 logical CPUs, 50 us per packet, no noise, no access path in the way.
QUIET = Hardware(access_mbps=1e5)


def slice_set(count: int, **fields: Any) -> SliceSet:
    """``count`` slices that differ by name and S-NSSAI only."""
    return SliceSet(
        tuple(
            SliceSpec(f"slice{i + 1}", SNssai(1, f"{i + 1:06X}"), Sla(committed_mbps=50, delay_bound_ms=100), **fields)
            for i in range(count)
        )
    )


@dataclass
class Loads:
    """A `RunSource` of constant rates (S,); ``sources`` sets fields of `Traffic`, per slice (S,) or for all."""

    mbps: Sequence[float]
    hardware: Hardware = QUIET
    period_s: float = 1.0
    steps: int = 30
    request_mcpu: Sequence[float] | None = None
    sources: dict[str, Any] = field(default_factory=dict)
    events: dict[str, Any] = field(default_factory=dict)
    make_slices: Callable[[int], SliceSet] = slice_set

    @property
    def slices(self) -> SliceSet:
        return self.make_slices(len(self.mbps))

    def draw(self, lanes: int, rng: np.random.Generator) -> SimulatorRun:
        count = len(self.mbps)
        traffic, events = Traffic.blank(1, count, lanes), NodeEvents.none(count, lanes, knots=2)
        for name, value in {"flow_mbps": self.mbps, **self.sources}.items():
            getattr(traffic, name)[0] = np.broadcast_to(np.asarray(value, np.float32), count)[:, None]
        for name, value in self.events.items():
            rows = np.asarray(value, np.float32)
            getattr(events, name)[:] = rows[:, None] if name.startswith("absent") else rows
        request = np.zeros(count) if self.request_mcpu is None else np.asarray(self.request_mcpu)
        return SimulatorRun(
            traffic=traffic,
            events=events,
            hardware=HardwareArrays(self.hardware, lanes),
            period_s=np.full(lanes, self.period_s, np.float32),
            promises=Promises.of(self.slices, lanes),
            threads=np.ones((count, lanes), np.float32),
            request_mcpu=np.repeat(request[:, None], lanes, axis=1).astype(np.float32),
            num_steps=self.steps,
        )
