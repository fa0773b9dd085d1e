"""Runs whose every cause is set by the test: constant loads, fixed knobs, a quiet node by default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import KNOB_FIELDS, Knobs, NiceScope
from slicepilot.env.simulator import kernels
from slicepilot.env.simulator.backend import RunSource, SimulatorBackend, SimulatorRun
from slicepilot.env.simulator.exogenous import NodeEvents, Traffic
from slicepilot.env.simulator.hardware import Hardware, HardwareArrays
from slicepilot.env.slices import Promises, Sla, SliceSet, SliceSpec, SNssai
from slicepilot.env.telemetry import SLICE_FIELDS

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


def context_of(
    slices: SliceSet,
    lanes: int = 1,
    period_s: float = 1.0,
    steps: int = 100,
    cpus: float = 4.0,
    uplink_mbps: float = 1000.0,
) -> Context:
    """Of a run on such a node."""
    return Context.alike(slices, period_s, cpus, uplink_mbps, steps, lanes)


@dataclass
class Loads:
    """A `RunSource` of constant rates (S,); ``sources`` sets fields of `Traffic`, per slice (S,) or for all."""

    mbps: Sequence[float]
    hardware: Hardware = QUIET
    period_s: float = 1.0
    steps: int = 30
    request_mcpu: Sequence[float] | FloatArray | None = None
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


@dataclass
class Record:
    """A run: telemetry (T, F, S, L) by field name, and per period what was arriving, leaving, dropped and queued."""

    slices: FloatArray
    node: FloatArray
    valid: np.ndarray
    left_mbit: FloatArray  # (T, S, L)
    dropped_mbit: FloatArray  # (T, 3, S, L)
    queues_mbit: FloatArray  # (T + 1, 3, S, L), before the first period and after each
    period_s: FloatArray

    def __getitem__(self, name: str) -> FloatArray:
        return self.slices[:, SLICE_FIELDS.index(name)]

    def end(self, name: str, periods: int = 5) -> FloatArray:
        """Mean over the last periods of lane 0, (S,)."""
        return self[name][-periods:, :, 0].mean(axis=0)


QUEUES = [kernels.N3_MBIT, kernels.PACER_MBIT, kernels.UPLINK_MBIT]


def play(
    episodes: RunSource,
    knobs: Knobs | Callable[[int], Knobs] | None = None,
    *,
    lanes: int = 1,
    seed: int = 0,
    steps: int | None = None,
) -> Record:
    """Play a run to its end, or ``steps`` periods of it, under fixed knobs or those that ``knobs(step)`` gives."""
    backend = SimulatorBackend(episodes, lanes)
    backend.reset(seed)
    engine, period_s = backend.engine, backend.context.period_s
    queues, rows = [engine.state[QUEUES].copy()], []
    for step in range(steps or backend.context.num_steps):
        if knobs is not None:
            backend.apply(knobs(step) if callable(knobs) else knobs)
        telemetry = backend.observe().copy()
        queues.append(engine.state[QUEUES].copy())
        left = engine.state[kernels.TX_MBPS] * period_s
        rows.append((telemetry.slices, telemetry.node, telemetry.valid, left, engine.dropped_mbit.copy()))
    slices, node, valid, left_mbit, dropped = (np.stack(column) for column in zip(*rows, strict=True))
    return Record(slices, node, valid, left_mbit, dropped, np.stack(queues), period_s)


def knobs_of(count: int, scope: NiceScope = "group", **columns: Any) -> Knobs:
    """Knobs of one lane: named columns with a value per slice or one for all, nothing set elsewhere."""
    knobs = Knobs.none(count, nice_scope=scope)
    for name, column in columns.items():
        knobs.values[KNOB_FIELDS.index(name), :, 0] = column
    return knobs
