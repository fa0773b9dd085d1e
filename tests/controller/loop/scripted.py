"""A live backend on real cgroups with scripted telemetry, agents with known decisions, and what the kernel holds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.agents.base import Agent
from slicepilot.controller.actuators.node import NodeActuator, SliceTargets
from slicepilot.controller.actuators.quota import CpuQuota
from slicepilot.controller.contracts.modes import Mode
from slicepilot.controller.guard.config import Distrust, Dwell, GuardConfig, Hysteresis, Oscillation, Patience, Slew
from slicepilot.controller.guard.guard import Guard
from slicepilot.controller.loop.live_backend import LiveBackend, live_context
from slicepilot.controller.loop.loop import ActivePolicy, Loop, LoopConfig, LoopReport, Watcher
from slicepilot.controller.record.ring import TickRing
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.signals import StopRequest
from slicepilot.controller.telemetry.layout import BUCKETS
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

SLICES = SliceSet.from_yaml("five-video")
PERIOD_S = 0.005


class Readings:
    """Telemetry that is known beforehand."""

    tasks = ()

    @property
    def counts(self) -> dict[str, int]:
        return {}

    def __init__(self) -> None:
        self.remarks: list[str] = []
        self.telemetry = Telemetry.empty(len(SLICES))
        self.telemetry.slices[:2] = 45.0
        self.measured = self.checks = self.rehearsals = 0
        self.closed = False

    def warm_up(self) -> None:
        self.rehearsals += 1

    def delay_counts(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
        return np.zeros((len(SLICES), BUCKETS), np.uint32)

    def measure(self) -> Telemetry:
        self.measured += 1
        return self.telemetry

    def check(self) -> list[str]:
        self.checks += 1
        self.telemetry.valid[2] = False
        return ["n3 of slice3: the device has gone"]

    def close(self) -> None:
        self.closed = True


class Asks:
    """Decides what a function of the number of decisions says."""

    name = "asks"
    request_mcpu: FloatArray | None = None

    def __init__(self, ask: Callable[[int], Knobs]) -> None:
        self.ask = ask

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        self.decisions = 0
        self.saw: list[Knobs] = []

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        self.decisions += 1
        self.saw.append(knobs)
        return self.ask(self.decisions)


def knobs(limit: float, nice: float = 0.0) -> Knobs:
    limits, nices, rates = (np.full((5, 1), value, np.float32) for value in (limit, nice, np.inf))
    return Knobs.of(limits, nices, rates)


@contextlib.contextmanager
def live(groups: list[Path], readings: Readings | None = None, period_s: float = PERIOD_S) -> Iterator[LiveBackend]:
    targets = [SliceTargets(name, path) for name, path in zip(SLICES.names, groups, strict=True)]
    actuator = NodeActuator(targets, 10_000)
    context = live_context(SLICES, period_s, uplink_mbps=1000, num_steps=20)
    backend = LiveBackend(SLICES, readings or Readings(), actuator, groups, context, period_s)
    try:
        yield backend
    finally:
        backend.close()


# Agents here jump, turn back and fail at will.
LOOSE = GuardConfig(
    hysteresis=Hysteresis(enabled=False),
    dwell=Dwell(enabled=False),
    slew=Slew(enabled=False),
    oscillation=Oscillation(reversals=1000),
    not_a_number=Patience(60.0),
    policy_error=Patience(60.0),
    telemetry=Distrust(frozen_ticks=None),
)


def active(agent: Agent, backend: LiveBackend, config: GuardConfig | None = None) -> ActivePolicy:
    """One that acts on all slices."""
    guard = Guard(config or GuardConfig(), backend.slices, backend.context, request_mcpu=agent.request_mcpu)
    return ActivePolicy(agent, guard, Mode.LIVE, np.zeros(len(backend.slices), np.uint32))


def loop_of(
    backend: LiveBackend,
    agent: Agent,
    config: LoopConfig | None = None,
    stop: StopRequest | None = None,
    watch: Watcher | None = None,
    ring: TickRing | None = None,
) -> Loop:
    return Loop(backend, active(agent, backend, LOOSE), config, stop, ring, watch)


def run_loop(backend: LiveBackend, agent: Agent, *arguments: Any, **options: Any) -> LoopReport:
    return loop_of(backend, agent, *arguments, **options).run()


def kernel_values(group: Path) -> tuple[float, int, int]:
    """Limit, CFS period and the number in the weight's file."""
    at = CpuGroup.at(group)
    quota = CpuQuota(at)
    weight = group / ("cpu.shares" if at.version == 1 else "cpu.weight")
    return quota.read(), quota.period_us, int(weight.read_text())
