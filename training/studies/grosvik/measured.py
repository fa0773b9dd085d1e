"""The bottleneck of Grosvik (2023) in this machine's kernel: policies as queueing disciplines, and agents."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.registry import make
from slicepilot.controller.actuators.uplink import ClassfulUplink
from slicepilot.data.reference import BottleneckScenario, bottleneck_scenarios
from slicepilot.env.backend import Context
from slicepilot.env.knobs import EGRESS, Knobs
from slicepilot.env.simulator.hardware import Hardware, HardwareArrays
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry
from slicepilot.training.studies.study import Effort, Findings, Store

from .bins import Array, Bins, figures_of_bins, ks_distance, over_turns
from .criteria import most_classes
from .policies import AGENT, BIN_S, FRAME_BYTES, GROUPS, LINK_MBPS, Policy, flows_of, with_agents
from .rig import FIRST_CLASS, LATE_MS, Rig, Run
from .simulated import series_of, slices_of

SECONDS, QUICK_SECONDS = 5.0, 2.5
QUICK_LOADS = (0, 3, 6)
CLASSES, QUICK_CLASSES = (16, 64, 256), (256,)
LEAST_CLASSES = 2
LATE_RATIO, TRIES = 0.002, 3
"""Share of packets that may be sent late: what a busy machine does to the load is nothing of the policy's. Beyond it a
run is repeated, and the best of so many tries counts."""
FRAME_MBIT = FRAME_BYTES * 8e-6


def measure(effort: Effort, store: Store) -> Findings:
    """All policies and agents under all loads, in turns by load, then with more and more classes.

    Raises:
        ConfigError: not root, or the kernel lacks something.
    """
    seconds = QUICK_SECONDS if effort.quick else SECONDS
    loads = [load for load in bottleneck_scenarios() if not effort.quick or load.scenario in QUICK_LOADS]
    numbers = QUICK_CLASSES if effort.quick else CLASSES
    policies = with_agents(effort.agents)
    result = Findings()
    rng = np.random.default_rng(effort.seed)
    cells = [_Cell(str(load.scenario), load) for load in loads]
    cells += [_Cell(f"{number}-classes", loads[-1], number) for number in numbers]
    cells.append(_Cell("frames", loads[-1], framed=True))
    tries, late_ratio = 0, 0.0
    by_number: dict[str, dict[int, Mapping[str, float]]] = {policy.name: {} for policy in policies}
    with Rig() as rig:
        for done, cell in enumerate(cells):
            for at, policy in enumerate(policies):
                effort.say(f"load {cell.name}, {policy.name}", (done + at / len(policies)) / len(cells))
                phase_s = rng.uniform(0.0, cell.load.on_s + cell.load.off_s)
                name = f"{policy.name}/{cell.name}"
                kept = store.get(name, lambda: _play(rig, policy, cell, seconds, phase_s))  # noqa: B023
                tries, late_ratio = tries + kept["tries"], max(late_ratio, kept["late_ratio"])
                target = result.values if policy.agent in (None, AGENT) else result.extra
                target |= dict(over_turns(name, [kept["figures"]]))
                result.material[name] = kept["series"]
                if cell.load is loads[-1] and not cell.framed:
                    by_number[policy.name][cell.classes] = kept["figures"]
    for policy in policies:
        target = result.values if policy.agent in (None, AGENT) else result.extra
        target |= dict(most_classes(policy.name, by_number[policy.name]))
    result.remarks.append(
        f"measured: packets of {FRAME_BYTES} bytes over a veth pair of this machine, a run of {seconds:g} s of each "
        f"policy and load, seed {effort.seed}, bins of 50 ms; the link is HTB, or TBF where it is a FIFO, policing "
        f"and early drop are BPF; delays are from a packet's time of sending to the kernel's time of its arrival; "
        f"{tries} runs were played for {len(cells) * len(policies)} cells, since a run in which a busy machine sends "
        f"packets late is repeated up to {TRIES} times; in the worst that counts {100.0 * late_ratio:.2f}% were "
        f"late by more than {LATE_MS:g} ms"
    )
    return result


@dataclass(frozen=True)
class _Cell:
    name: str
    load: BottleneckScenario
    classes: int = LEAST_CLASSES
    framed: bool = False


def _play(rig: Rig, policy: Policy, cell: _Cell, seconds: float, phase_s: float) -> dict[str, Any]:
    """A run as JSON: figures and its series."""
    pairs = cell.classes // 2
    flows = flows_of(cell.load, seconds, phase_s, cell.framed)
    runs: list[Run] = []
    while len(runs) < TRIES and (not runs or runs[-1].late_ratio > LATE_RATIO):
        control = None if policy.agent is None else Control(policy.agent, pairs)
        runs.append(rig.play(policy, flows, pairs, seconds, control))
    run = min(runs, key=lambda each: each.late_ratio)
    bins = binned(run, pairs, seconds)
    figures = figures_of_bins(bins)
    for which, values in _by_phase(run, bins, pairs).items():
        figures[f"critical/ks-{which}/on"] = ks_distance(values["on"], values["off"])
    return {"figures": figures, "series": series_of(bins), "tries": len(runs), "late_ratio": run.late_ratio}


def binned(run: Run, pairs: int, seconds: float) -> Bins:
    """Packets in bins: offered, lost and delayed packets by their time of sending, carried packets by their arrival."""
    count = round(seconds / BIN_S)
    sent_bin = ((run.sent_ns - run.started_ns) / (1e9 * BIN_S)).astype(np.int64)
    came_bin = ((run.received_ns - run.started_ns) / (1e9 * BIN_S)).astype(np.int64)
    came = run.received_ns > 0
    delay_ms = 1e-6 * (run.received_ns - run.sent_ns)
    kinds = []
    for kind in range(len(GROUPS)):
        own = run.flows // pairs == kind
        rates = [
            _count(where[chosen], count) * FRAME_MBIT / BIN_S
            for where, chosen in ((sent_bin, own), (came_bin, own & came), (sent_bin, own & ~came))
        ]
        delays = [delay_ms[own & came & (sent_bin == at)] for at in range(count)]
        tails = [[np.percentile(each, level) if each.size else np.nan for each in delays] for level in (50, 99)]
        kinds.append(np.asarray([*rates, *tails]))
    return Bins(*np.stack(kinds, axis=1))


def _count(bins: Any, count: int) -> Array:
    inside = bins[(bins >= 0) & (bins < count)]
    return np.bincount(inside, minlength=count).astype(np.float64)


def _by_phase(run: Run, bins: Bins, pairs: int) -> dict[str, dict[str, Array]]:
    """One-way delays of critical packets, and times between their arrivals, ms, by phase of their bin."""
    own = (run.flows < pairs) & (run.received_ns > 0)
    sent, received = run.sent_ns[own], run.received_ns[own]
    at = np.clip(((sent - run.started_ns) / (1e9 * BIN_S)).astype(np.int64), 0, bins.offered.shape[1] - 1)
    order = np.argsort(received, kind="stable")
    gaps = np.diff(received[order], prepend=received[order][:1])
    between = np.empty(len(received))
    between[order] = 1e-6 * gaps
    phases = bins.phases()
    values: dict[str, Any] = {"delay": 1e-6 * (received - sent), "interarrival": between}
    return {which: {name: own[phases[name][at]] for name in ("on", "off")} for which, own in values.items()}


class Control:
    """An agent that moves the ceilings of an uplink's classes by their counters."""

    def __init__(self, name: str, pairs: int) -> None:
        self.slices = slices_of(pairs)
        node = Hardware.from_yaml("grosvik")
        self.agent: Agent = make(name, self.slices, node)
        self.context = _context(self.slices, node)
        self.knobs = Knobs.none(len(self.slices))
        self.decisions = 0

    def __call__(self, uplink: ClassfulUplink, started_ns: int, seconds: float) -> None:
        """Decide every period until the run is over."""
        self.agent.reset(self.slices, self.context, 0)
        before = uplink.counters()
        last_ns = time.monotonic_ns()
        due_s = time.monotonic() + max(1e-9 * (started_ns - time.time_ns()), 0.0)
        end_s = due_s + seconds
        while (due_s := due_s + BIN_S) < end_s:
            time.sleep(max(due_s - time.monotonic(), 0.0))
            now_ns, counters = time.monotonic_ns(), uplink.counters()
            telemetry = self._telemetry(counters - before, counters[:, 2], 1e-9 * (now_ns - last_ns))
            before, last_ns = counters, now_ns
            wanted = self.agent.decide(telemetry, self.knobs)
            for at in np.flatnonzero(wanted.egress_mbps[:, 0] != self.knobs.egress_mbps[:, 0]):
                uplink.set_ceiling(FIRST_CLASS + int(at), float(wanted.egress_mbps[at, 0]))
            self.knobs = wanted
            self.decisions += 1

    def _telemetry(self, moved: Array, backlog: Array, period_s: float) -> Telemetry:
        """Out of bytes sent, bytes dropped and backlog, (S, 3)."""
        to_mbps = 8e-6 / period_s
        carried = moved[:, 0] * to_mbps
        offered = np.maximum(carried + (moved[:, 1] + moved[:, 2]) * to_mbps, 0.0)
        waits_us = 8.0 * backlog / np.maximum(carried, 0.1)
        loss = np.maximum(1.0 - carried / np.maximum(offered, 1e-6), 0.0)
        telemetry = Telemetry.empty(len(self.slices))
        telemetry.slices[:5, :, 0] = offered, carried, waits_us, waits_us, loss
        telemetry.node[:, 0] = 1.0, min(carried.sum() / LINK_MBPS, 1.0)
        return telemetry


def _context(slices: SliceSet, node: Hardware) -> Context:
    """A node on which nothing but the ceilings can be moved."""
    rows = np.zeros((3, len(slices), 1), np.float32)
    moves = np.zeros((3, len(slices), 1), np.bool_)
    moves[EGRESS] = True
    arrays = HardwareArrays(replace(node, egress_mode="htb"), 1, rows)
    plain = Context.alike(slices, BIN_S, node.logical_cpus, node.uplink_mbps, num_steps=0)
    return replace(plain, traits=arrays.traits(slices.column("cpu_request_mcpu")), moves=moves)
