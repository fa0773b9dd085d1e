"""Evaluation scenarios drawn from a seed: nodes, slices, promises and loads for which no agent was tuned.

Independent of the mixture that training draws from (`slicepilot.env.simulator.mixture`), without code in common, so
that the two do not share omissions. A deployment is drawn from its purpose (remote control, video, web, bulk), with a
bottleneck by design: the CPU, the uplink, both, or an edge application.
Everything ends up in YAML files that ``slicepilot simulate`` plays as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from slicepilot.data.files import replace_file
from slicepilot.env.simulator.scenario import Scenario

Bottleneck = Literal["cpu", "uplink", "both", "edge"]
BOTTLENECKS: tuple[Bottleneck, ...] = ("cpu", "uplink", "both", "edge")
CPUS = (2, 4, 6, 8, 12, 16)
SLICES = (3, 10)
PERIOD_S = (0.01, 15.0)
STEPS = (240, 480)
THREADS, THREAD_ODDS = (1, 2, 4), (0.6, 0.25, 0.15)
MBIT_PER_BYTE = 8e-6


@dataclass(frozen=True)
class Purpose:
    """Purpose of a slice. Pairs are ranges, log-uniform.

    Attributes:
        kind: of load.
        packet_bytes: size of its packets.
        bound_ms: promised bound of the p99 delay.
        weight: among its neighbours.
        promised: committed over mean rate.
        demand: its part of all the load, before it is scaled to the node.
    """

    kind: str
    packet_bytes: tuple[float, float]
    bound_ms: tuple[float, float]
    weight: tuple[float, float]
    promised: tuple[float, float]
    demand: tuple[float, float]


PURPOSES = {
    "control": Purpose("cbr", (100, 400), (5, 30), (4, 10), (0.9, 1.0), (0.1, 0.5)),
    "video": Purpose("video", (1000, 1470), (30, 150), (2, 10), (0.8, 1.0), (0.5, 2.0)),
    "sensors": Purpose("poisson", (80, 250), (100, 1000), (0.5, 3), (0.7, 1.0), (0.1, 0.6)),
    "web": Purpose("poisson", (600, 1200), (150, 800), (1, 4), (0.5, 0.9), (0.5, 2.0)),
    "bursts": Purpose("onoff", (800, 1470), (200, 1500), (0.5, 3), (0.4, 0.8), (0.7, 2.5)),
    "bulk": Purpose("tcp", (1200, 1470), (500, 3000), (0.3, 1.5), (0.1, 0.5), (0.7, 2.5)),
}


def draw_scenarios(folder: Path, seed: int, count: int, period_s: float | None = None) -> list[Scenario]:
    """Scenarios 0 to ``count`` - 1 of a seed, written below a folder; a scenario does not depend on ``count``.

    Args:
        folder, seed, count: as above.
        period_s: control period of all of them; None: each has its own, from `PERIOD_S`. Loads and runs are as many
            periods long in any case.

    Raises:
        ConfigError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [_draw(folder.resolve(), seed, number, period_s) for number in range(count)]


def _draw(folder: Path, seed: int, number: int, given_s: float | None) -> Scenario:
    rng = np.random.default_rng([seed, number])
    name = f"drawn-{seed}-{number:02d}"
    bottleneck = BOTTLENECKS[rng.integers(len(BOTTLENECKS))]
    own_s = float(f"{_log(rng, PERIOD_S):.3g}")
    period_s = own_s if given_s is None else given_s
    duration_s = period_s * float(rng.integers(*STEPS))
    node = _node(rng)
    slices, loads = _slices(rng, node, bottleneck, period_s, duration_s)
    document: dict[str, Any] = {
        "name": name,
        "description": f"Drawn from seed {seed}, number {number}; bottleneck: {bottleneck}.",
        "slices": _write(folder / f"{name}.slices.yaml", {"slices": slices}),
        "hardware": _write(folder / f"{name}.hardware.yaml", {"source": f"Drawn: {name}.", "hardware": node}),
        "duration_s": duration_s,
        "control_period_s": period_s,
        "loads": loads,
    }
    if bottleneck == "edge":
        request = float(np.round(rng.uniform(0.0, 500.0 * node["logical_cpus"]), -1))
        document["edge"] = {"threads": node["logical_cpus"], "cpu_request_mcpu": request}
    if rng.random() < 0.4:
        scarce = "uplink_profile" if bottleneck in {"uplink", "both"} else "cpu_profile"
        document[scarce] = _bump(rng, duration_s, (0.1, 0.9), (0.5, 0.9))
    if rng.random() < 0.3:
        start, end = np.sort(rng.uniform(0.1, 0.9, 2)) * duration_s
        document["absent"] = {slices[int(rng.integers(1, len(slices)))]["name"]: [float(start), float(end)]}
    return Scenario.from_yaml(_write(folder / f"{name}.yaml", document))


def _node(rng: np.random.Generator) -> dict[str, Any]:
    """Hardware without its uplink's rate."""
    cpus = int(rng.choice(CPUS))
    smt = rng.random() < 0.5
    return {
        "logical_cpus": cpus,
        "physical_cores": cpus // 2 if smt else cpus,
        "smt_yield": float(rng.uniform(0.55, 0.95)),
        "upf_cost_us": _log(rng, (8, 80)),
        "rx_cost_us": _log(rng, (1, 6)),
        "tx_cost_us": _log(rng, (1, 10)),
        "placement_cv": float(rng.uniform(0.0, 0.3)) if rng.random() < 0.5 else 0.0,
        "placement_tau_s": float(rng.uniform(0.5, 5.0)),
        "sched_slice_ms": _log(rng, (1, 6)),
        "wake_wait_ms": _log(rng, (0.1, 4)) if rng.random() < 0.5 else 0.0,
        "n3_buffer_packets": _log(rng, (150, 4000)),
        "egress_mode": ("edt", "tbf", "htb")[rng.integers(3)],
        "htb_queue_packets": _log(rng, (50, 1000)),
        "tbf_latency_ms": _log(rng, (10, 100)),
        "uplink_buffer_ms": _log(rng, (2, 50)),
        "access_mbps": 10_000.0,
        "cpu_cv": float(rng.uniform(0.0, 0.2)),
    }


def _slices(
    rng: np.random.Generator, node: dict[str, Any], bottleneck: Bottleneck, period_s: float, duration_s: float
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Slices and their loads; sets the node's uplink to the rate that the bottleneck needs."""
    count = int(rng.integers(SLICES[0], SLICES[1] + 1))
    kinds = ["control" if rng.random() < 0.5 else "video", *rng.choice(list(PURPOSES), count - 1).tolist()]
    purposes = [PURPOSES[kind] for kind in kinds]
    packets = np.asarray([_log(rng, item.packet_bytes) for item in purposes])
    parts = np.asarray([_log(rng, item.demand) for item in purposes])
    threads = rng.choice(THREADS, count, p=THREAD_ODDS)
    cpu_s_per_mbit = (node["upf_cost_us"] + node["rx_cost_us"] + node["tx_cost_us"]) * 1e-6 / (MBIT_PER_BYTE * packets)
    usable = node["physical_cores"] + (node["logical_cpus"] - node["physical_cores"]) * (2 * node["smt_yield"] - 1)
    short_of_cpu = bottleneck in {"cpu", "both"}
    load = rng.uniform(1.1, 1.9) if short_of_cpu else rng.uniform(0.35, 0.75)
    mbps = parts / parts.sum() * load * usable / cpu_s_per_mbit
    # A thread cannot use more than one CPU, however long the queue.
    mbps = np.minimum(mbps, 1.3 * threads / cpu_s_per_mbit)
    over = rng.uniform(1.15, 2.0) if bottleneck in {"uplink", "both"} else rng.uniform(0.3, 0.7)
    node["uplink_mbps"] = float(mbps.sum() / over)
    # All promises together ask for about what there is, sometimes for more.
    fits = rng.uniform(0.6, 1.05) / max(load if short_of_cpu else 0.0, over, 1e-9)
    # As operators do: pods request a part of what they use. Without any they weigh next to nothing (BestEffort).
    requested = rng.uniform(0.3, 1.0) if bottleneck == "edge" or rng.random() < 0.5 else 0.0
    slices, loads = [], {}
    for index, (kind, item) in enumerate(zip(kinds, purposes, strict=True)):
        name = f"{kind}-{index + 1}"
        share = min(_log(rng, item.promised), 1.0 if index == 0 else max(fits, 0.05))
        weight = float(rng.uniform(*item.weight)) if index else 10.0
        slices.append(
            {
                "name": name,
                "s_nssai": {"sst": 1, "sd": f"{index + 1:06X}"},
                "weight": round(weight, 2),
                "sla": {"committed_mbps": float(mbps[index] * share), "delay_bound_ms": _log(rng, item.bound_ms)},
                "bounds": {
                    "cpu_limit_mcpu": [50, 1000 * int(threads[index])],
                    "nice": [-10, 10],
                    "egress_mbps": [float(0.02 * mbps[index]), float(4 * mbps[index])],
                },
                "upf_threads": int(threads[index]),
                "cpu_request_mcpu": round(float(requested * mbps[index] * cpu_s_per_mbit[index] * 1e3)),
            }
        )
        loads[name] = [_load(rng, item, float(mbps[index]), float(packets[index]), period_s, duration_s)]
    return slices, loads


def _load(
    rng: np.random.Generator, item: Purpose, mbps: float, packet_bytes: float, period_s: float, duration_s: float
) -> dict[str, Any]:
    load: dict[str, Any] = {"kind": item.kind, "packet_bytes": round(packet_bytes)}
    flows = int(rng.integers(1, 6))
    if item.kind == "onoff":
        on_s, off_s = (period_s * _log(rng, (4, 40)) for _ in range(2))
        load |= {"on_s": on_s, "off_s": off_s}
        mbps *= (on_s + off_s) / on_s
    load |= {"flows": flows, "rate_mbps": mbps / flows}
    chance = rng.random()
    if chance < 0.4:
        load["profile"] = _bump(rng, duration_s, (0.05, 0.95), (0.3, 1.8))
    elif chance < 0.6:
        load["start_s"] = float(rng.uniform(0.05, 0.5) * duration_s)
    return load


def _bump(
    rng: np.random.Generator, duration_s: float, span: tuple[float, float], level: tuple[float, float]
) -> list[list[float]]:
    """Something that goes from 1 to another level, stays there and comes back, at random times of a part of the run."""
    times = np.sort(rng.uniform(*span, 4)) * duration_s
    there = float(rng.uniform(*level))
    return [[0.0, 1.0], *([float(at), value] for at, value in zip(times, (1.0, there, there, 1.0), strict=True))]


def _log(rng: np.random.Generator, span: tuple[float, float]) -> float:
    """Log-uniform."""
    return float(np.exp(rng.uniform(*np.log(span))))


def _write(path: Path, document: dict[str, Any]) -> str:
    replace_file(path, yaml.safe_dump(document, sort_keys=False).encode())
    return str(path)
