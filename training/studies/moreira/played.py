"""The study of Moreira et al. (2026) in the simulator and on the testbed: neighbours, QFIs, and agents beside none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from slicepilot.agents.heuristics.registry import make
from slicepilot.env.simulator.scenario import Load, Scenario
from slicepilot.training.evaluation.rollouts import Rollout, simulate_rollout
from slicepilot.training.studies.study import Effort, Findings, Store
from slicepilot.training.studies.testbed import StudyTestbed

from .samples import BASELINE, CLASSES, QFIS, figures_of_table, table_of

SCENARIO, SLICES = "testbed-sensor", "testbed-sensor-qfi{}"
NEIGHBOURS = ("neighbour1", "neighbour2")
PACKET_BYTES = 1110
"""Of the study's flood: 2.37 Gbit/s in 267,000 packets/s (its release, ``qf1_load``)."""
RELEASE_PPS = {"Constant-Rate": 267_000.0, "Anomaly": 287_000.0}
QUARTER = "Constant-Rate/4"
"""A flood of a quarter of the rate, which the study has not: tells waiting for the CPU from waking it."""
RATE_SCALE = 0.0405
"""Of the packets/s: what asks for 0.8 of two CPUs that spend 148 us on a packet."""
USERS = {"neighbour1": 3, "neighbour2": 2}
"""Of the nine replayed applications: 1,380 packets/s in the median, as in the release (``qf1_replay``)."""
WARM_UP_PERIODS = 10
NO_CONTROL = "no-control"
CLOSED_LOOP = ("queue-greedy",)
"""Agents that close the loop where none is named."""
REPETITIONS, QUICK_REPETITIONS = 10, 3
TURNS, QUICK_TURNS = 3, 1
HOW = (
    "a packet a period of 100 ms for 3 s a run after 1 s, latencies from N3 to N6; floods have "
    f"{RATE_SCALE:g} of the release's packets/s, the applications its users; n of each figure is the number of packets"
)


def simulate(effort: Effort, store: Store) -> Findings:
    """All runs in the simulator of a testbed's node."""
    repetitions = QUICK_REPETITIONS if effort.quick else REPETITIONS

    def play(agent: str, condition: str, qfi: int) -> list[dict[str, Any]]:
        own = scenario(condition, qfi)
        made = make(agent, own.slice_set(), own.hardware_spec())
        seed = effort.seed + 1000 * QFIS.index(qfi)  # a run of its own: the simulator does not look at QFIs
        rollout = simulate_rollout(made, own, repetitions, seed)
        return [rows_of(rollout, condition, qfi)]

    return _findings(effort, store, "simulated", list(_cells(effort)), play, f"{repetitions} repetitions")


def measure(effort: Effort, store: Store) -> Findings:
    """All runs on UPFs of this machine, in turns; each is stored as soon as it ends.

    Raises:
        ConfigError: there is no testbed to be had.
    """
    turns = QUICK_TURNS if effort.quick else TURNS
    with closing(StudyTestbed()) as testbed:

        def play(agent: str, condition: str, qfi: int, turn: int) -> list[dict[str, Any]]:
            rollout = testbed.play(agent, scenario(condition, qfi), effort.seed + turn)
            return [rows_of(rollout, condition, qfi)]

        # A testbed has a single QFI: play all runs of a QFI before those of the next.
        cells = [(*cell, turn) for qfi in QFIS for turn in range(turns) for cell in _cells(effort) if cell[2] == qfi]
        return _findings(effort, store, "measured", cells, play, f"{turns} turns")


def _cells(effort: Effort) -> Iterator[tuple[str, str, int]]:
    for agent in (NO_CONTROL, *(effort.agents or CLOSED_LOOP)):
        for condition in (*CLASSES, *((QUARTER,) if agent == NO_CONTROL else ())):
            for qfi in QFIS:
                yield agent, condition, qfi


def _findings(
    effort: Effort, store: Store, source: str, cells: list[Any], play: Callable[..., list[dict[str, Any]]], how: str
) -> Findings:
    rows = dict[str, list[dict[str, Any]]]()
    for done, cell in enumerate(cells):
        effort.say(f"{source}: {cell[0]} beside {cell[1]}, QFI {cell[2]}", done / len(cells))
        rows.setdefault(cell[0], []).extend(store.get("/".join(map(str, cell)), lambda: play(*cell)))  # noqa: B023
    pair = table_of(row for row in rows[NO_CONTROL] if row["traffic_class"] in (BASELINE, QUARTER))
    quarter = {key: each for key, each in figures_of_table(pair, effort.seed).items() if f"/{QUARTER}/" in key}
    result = Findings(extra=quarter)
    rows[NO_CONTROL] = [row for row in rows[NO_CONTROL] if row["traffic_class"] != QUARTER]
    tables = {agent: table_of(own) for agent, own in rows.items()}
    result.values = figures_of_table(tables.pop(NO_CONTROL), effort.seed)
    for agent, table in tables.items():
        own = figures_of_table(table, effort.seed)
        kept = ("class", "ratio", "test")
        result.extra |= {f"{agent}/{key}": figure for key, figure in own.items() if key.split("/")[0] in kept}
    result.material["rows"] = rows
    result.remarks.append(f"{source}: {how}, seed {effort.seed}; {HOW}")
    return result


@cache
def scenario(condition: str, qfi: int) -> Scenario:
    """The sensor beside neighbours of a condition."""
    base = Scenario.from_yaml(SCENARIO)
    loads = {name: own for name, own in base.loads.items() if name not in NEIGHBOURS}
    loads |= {name: own for name in NEIGHBOURS if (own := _load(condition, name))}
    name = f"{base.name}-{condition.lower().replace('/', '-')}-qfi{qfi}"
    return replace(base, name=name, slices=SLICES.format(qfi), loads=loads)


def _load(condition: str, neighbour: str) -> tuple[Load, ...]:
    if condition == CLASSES[0]:
        return ()
    if condition == "Multimedia":
        return (Load("apps", flows=USERS[neighbour]),)
    share = 0.25 if condition == QUARTER else 1.0
    packets_per_s = share * RELEASE_PPS[condition.partition("/")[0]] * RATE_SCALE
    rate_mbps = packets_per_s / len(NEIGHBOURS) * PACKET_BYTES * 8 / 1e6
    return (Load("cbr", rate_mbps=rate_mbps, packet_bytes=PACKET_BYTES),)


def rows_of(rollout: Rollout, condition: str, qfi: int) -> dict[str, Any]:
    """Latencies of the sensor's packets of a run, a control period each, with the CPU and the packets of the node.

    At ten packets a second a period of 100 ms has a single packet, whose latency is the period's median.
    """
    sensor = rollout.slices.priority_index
    span = slice(WARM_UP_PERIODS, None)
    arrived = rollout.valid[span, sensor] & (rollout.row("carried_mbps")[span, sensor] > 0)
    loads = scenario(condition, qfi).loads
    sizes = [loads[name][0].mean_packet_bytes if name in loads else np.inf for name in rollout.slices.names]
    packets = (rollout.row("offered_mbps")[span] * 1e6 / 8 / np.asarray(sizes)[:, None]).sum(axis=1)
    latency_us = rollout.row("delay_p50_us")[span, sensor]
    return {
        "traffic_class": condition,
        "qfi": qfi,
        "latency_us": latency_us[arrived].astype(float).round(2).tolist(),
        "cpu": rollout.cpu_use_mcpu[span][arrived].astype(float).round(1).tolist(),
        "packets": packets[arrived].astype(float).round(1).tolist(),
    }
