"""Some seconds of a node's traffic at a time, under knobs as they are or drawn at random within declared bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.as_found import AsFound
from slicepilot.agents.heuristics.fixed import FixedAgent
from slicepilot.controller.telemetry.report.summary import summary
from slicepilot.controller.telemetry.source import KernelSource
from slicepilot.data.intervals import Array
from slicepilot.env.arrays import BoolArray, FloatArray
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS
from slicepilot.node.live.backend import NodeBackend
from slicepilot.node.live.stepped import GuardedNode
from slicepilot.training.recording.recording import run

SETTLE_S, MEASURE_S = 0.4, 4.0
"""The same as in `slicepilot.training.calibration.identify`."""
# What knobs are moved to: shares of what a slice uses and carries, levels, and how often.
LIMIT_RATIO, NICE_LEVELS, EGRESS_RATIO = (0.5, 1.5), (-10, 11), (0.6, 1.3)
LIMITED, NICED, SHAPED = 0.5, 0.4, 0.2
LEAST_USE_MCPU, LEAST_MBPS = 20.0, 0.5


@dataclass(frozen=True)
class Segment:
    """Measurements of S slices over T control periods.

    Attributes:
        offered_mbps, carried_mbps, delay_p99_us, use_mcpu: (T + 1, S); the first period has the original settings.
        idle_ratio: of all CPUs, (T + 1,).
        knobs: that held in each period, (T + 1, 3, S).
        valid: whether a slice was measured throughout, (S,).
        packets, bytes, cpu_s: of each slice, (S,): packets that left, bytes of packets that came, CPU time of its
            cgroup (NaN without a cgroup).
        arrived: packets that came, (S,).
        seconds: duration.
    """

    offered_mbps: FloatArray
    carried_mbps: FloatArray
    delay_p99_us: FloatArray
    use_mcpu: FloatArray
    idle_ratio: FloatArray
    knobs: FloatArray
    valid: BoolArray
    packets: Array
    bytes: Array
    cpu_s: Array
    arrived: Array
    seconds: float


def watch(
    backend: NodeBackend | GuardedNode, source: KernelSource, agents: Sequence[Agent], on_segment: Callable[[], None]
) -> list[Segment]:
    """A segment for each agent, in turn; each is a run of the backend."""
    result, grouped = [], [item.cgroup is not None for item in source.packets.points]
    for number, agent in enumerate(agents):
        before, cpu_ns, began_s = summary(source, None, 1.0)["slices"], source.cpu_ns(), time.monotonic()
        with backend.real_time():
            kept = run(backend, agent, number)
        took_s = time.monotonic() - began_s
        after, trace = summary(source, None, 1.0)["slices"], kept.trace
        last = "n6" if "n6" in after[0] else "tun"
        rows = {name: trace.slices[:, at, :, 0] for at, name in enumerate(SLICE_FIELDS)}
        pairs = list(zip(before, after, strict=True))
        result.append(
            Segment(
                offered_mbps=rows["offered_mbps"],
                carried_mbps=rows["carried_mbps"],
                delay_p99_us=rows["delay_p99_us"],
                use_mcpu=rows["cpu_use_mcpu"],
                idle_ratio=trace.node[:, NODE_FIELDS.index("cpu_idle_ratio"), 0],
                knobs=trace.knobs[..., 0],
                valid=np.asarray(trace.valid[..., 0].all(axis=0)),
                packets=_grown(pairs, last, "packets"),
                bytes=_grown(pairs, "n3", "bytes"),
                cpu_s=1e-9 * np.where(grouped, source.cpu_ns() - cpu_ns, np.nan),
                arrived=_grown(pairs, "n3", "packets"),
                seconds=took_s,
            )
        )
        on_segment()
    return result


def _grown(pairs: list[tuple[dict[str, Any], dict[str, Any]]], point: str, field: str) -> Array:
    return np.asarray([new[point][field] - old[point][field] for old, new in pairs], np.float64)


def draw(first: Segment, count: int, seed: int) -> list[Agent]:
    """Agents that hold knobs drawn at random, by what the slices did in a first segment; every third leaves them.

    Each moves a CPU limit below what its slice uses now and then: the queues that form show how much can queue.
    """
    rng = np.random.default_rng(seed)
    use, rate = first.use_mcpu.mean(axis=0), first.carried_mbps.mean(axis=0)
    agents: list[Agent] = []
    for number in range(count):
        if number % 3 == 0:
            agents.append(AsFound())
            continue
        slices = len(use)
        limit, egress, nice = np.full(slices, np.inf), np.full(slices, np.inf), np.zeros(slices)
        drawn = rng.random((3, slices)) < np.array([[LIMITED], [NICED], [SHAPED]])
        limit[drawn[0]] = (use * rng.uniform(*LIMIT_RATIO, slices))[drawn[0]]
        nice[drawn[1]] = rng.integers(*NICE_LEVELS, slices)[drawn[1]]
        egress[drawn[2]] = (rate * rng.uniform(*EGRESS_RATIO, slices))[drawn[2]]
        limit[use < LEAST_USE_MCPU], egress[rate < LEAST_MBPS] = np.inf, np.inf
        agents.append(FixedAgent(f"segment-{number}", limit, nice, egress))
    return agents
