"""The loads of Mishra and Pandey (2026) in the simulator, packet by packet, without control and under agents."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.registry import make
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.rollouts import simulate_rollout
from slicepilot.training.studies.study import Effort, Figure, Findings, Store

from .packets import PacketPath, arrivals_s, delays_us, packets_per_s
from .samples import (
    CONTROLLED,
    CONTROLLER,
    IDLE,
    LOADS,
    MATCHED,
    SLICES,
    delay_key,
    folder_of,
    kept_cell,
    write_forwarding,
)

QUICK_S = 60.0
WRITTEN_S = 5.0
"""Of each load, in CSV; all of the heavy load would be 600 MB."""
P99_Z = 2.326  # standard normal
SEED_OF_PACKETS = 1


def scenario_of(load: str) -> Scenario:
    """One of the study's loads."""
    return Scenario.from_yaml(f"testbed-mishra-{load}")


def players_of(effort: Effort) -> dict[str, str]:
    """Agents by the prefix of their rows' keys: no control, the controller, and the requested agents."""
    return {"": "no-control", CONTROLLED: CONTROLLER} | {f"{name}/": name for name in effort.agents}


def simulate(effort: Effort, store: Store) -> Findings:
    """All loads, as long as the study ran them."""
    result = Findings(material={"curves": {}})
    players = players_of(effort)
    parts = len(LOADS) * len(players)
    for number, (player, agent) in enumerate(players.items()):
        for at, load in enumerate(LOADS):
            scenario = scenario_of(load)
            if effort.quick:
                scenario = replace(scenario, duration_s=QUICK_S)
            folder = folder_of(store, "simulated") if not player else None

            def step(share: float, done: int = number * len(LOADS) + at, load: str = load) -> None:
                effort.say(f"simulating the {load} load", (done + share) / parts)

            made = make(agent, scenario.slice_set(), scenario.hardware_spec())
            cells = store.get(
                f"{player}{load}",
                lambda: _cells(scenario, made, effort.seed, step, folder and folder / csv_name(load)),  # noqa: B023
            )
            take_cells(result, cells, load, player, effort)
    result.remarks.append(
        f"simulated: {QUICK_S if effort.quick else 600:g} s of each load, seed {effort.seed}; the path of a packet was "
        f"fitted on the light and the heavy load, the medium load is shown and was never fitted; the simulator has no "
        f"N4; the controller is {CONTROLLER}"
    )
    return result


def csv_name(load: str) -> str:
    """As the study's repository names its files."""
    return f"o1_forwarding_exp_{load}.csv"


def take_cells(result: Findings, cells: dict[str, Any], load: str, player: str, effort: Effort) -> None:
    """Put kept cells of slices, and of PFCP transactions below ``pfcp/``, into rows and curves."""
    for name, cell in cells.items():
        also = name.startswith((MATCHED, IDLE)) or player.removesuffix("/") in effort.agents
        target = result.extra if also else result.values
        for statistic, (value, low, high) in cell["figures"].items():
            cell_name = name if name.startswith(IDLE) else f"{player}{load}/{name}"
            key = delay_key(load, name, statistic, player) if name in SLICES else f"{cell_name}/{statistic}"
            target[key] = Figure(value, low, high)
        result.material["curves"][f"{player}{load}/{name}"] = cell["curve"]


def _cells(
    scenario: Scenario, agent: Agent, seed: int, step: Callable[[float], None], path: Path | None
) -> dict[str, Any]:
    played = itertools.count()

    def on_period() -> None:
        if (done := next(played)) % 1000 == 0:
            step(done / scenario.num_steps)

    # Offered and carried rate, median and 99th percentile of the delay in us, (T, 4, S).
    node = simulate_rollout(agent, scenario, 1, seed, on_period=on_period).series[:4, ..., 0].swapaxes(0, 1)
    packets = dict(_packets(scenario, node, seed))
    if path is not None:
        written = []
        for name, (arrived_s, delay_us, packet_bytes) in packets.items():
            first = arrived_s < WRITTEN_S
            received_ns = np.rint(1e9 * arrived_s[first]).astype(np.int64)
            sent_ns = received_ns + np.rint(1e3 * delay_us[first]).astype(np.int64)
            part = {"slice": name, "received_ns": received_ns, "sent_ns": sent_ns, "packet_bytes": packet_bytes}
            written.append(part)
        write_forwarding(path, written)
    return {name: kept_cell(delay_us) for name, (_, delay_us, _) in packets.items()}


def _packets(
    scenario: Scenario, node: npt.NDArray[np.float32], seed: int
) -> Iterator[tuple[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], int]]]:
    """By slice: arrivals in s and delays in us of all packets (N,), in the order in which they came, and their size."""
    rng = np.random.default_rng((seed, SEED_OF_PACKETS))
    path, cost_us = PacketPath(), scenario.hardware_spec().upf_cost_us
    loads = {name: load for name in SLICES for load in scenario.loads[name]}
    node_pps = sum(map(packets_per_s, loads.values()))
    for s, (name, load) in enumerate(loads.items()):
        arrived_s = arrivals_s(load, scenario.duration_s, path, cost_us, rng)
        period = np.minimum((arrived_s / scenario.control_period_s).astype(np.int64), len(node) - 1)
        offered, carried, p50_us, p99_us = node[period, :, s].T.astype(np.float64)
        # The engine's own delay of a single packet, which the packet model already includes.
        busy_us = min(1e-6 * cost_us * packets_per_s(load), 1.0) * 1e6 * load.burst_s
        wait_us = np.maximum(p50_us - 1.01 * (cost_us + 0.5 * busy_us) - 1.0, 0.0)
        long_us = np.maximum(p99_us - 1.01 * (cost_us + busy_us) - 1.0, wait_us)
        delay_us = delays_us(arrived_s, node_pps, path, cost_us, rng)
        spread = np.log(np.maximum(long_us, 1.0) / np.clip(wait_us, 1.0, None)) / P99_Z
        delay_us += wait_us * np.exp(spread * rng.standard_normal(len(arrived_s)))
        passed = rng.random(len(arrived_s)) * offered <= carried
        yield name, (arrived_s[passed], delay_us[passed], round(load.mean_packet_bytes))
