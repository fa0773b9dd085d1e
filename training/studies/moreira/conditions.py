"""The sensor's neighbours of Moreira et al. (2026) as loads, and their scenario."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from slicepilot.env.simulator.scenario import Load, Scenario
from slicepilot.training.evaluation.rollouts import Rollout

from .samples import CLASSES

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
