"""Single packets through the UPFs of Mishra and Pandey (2026), beside the simulator's fluid engine.

The engine models a UPF's CPU share and its queues by control period. The study's delays on an idle server come from
effects below that: packets pass a thread in sequence (Lindley's recursion), a sleeping CPU has to wake up, and the gNB
process that carries all three slices pauses, after which packets come in a burst.
Deep idle states pay from some 0.6 ms of sleep on (Linux, drivers/idle/intel_idle.c, ``skx_cstates``: C6), and the
busier the server, the less often all of it sleeps. That these are the causes is assumed; the study does not say.

Six constants and the node's ``upf_cost_us`` are fitted on the means, medians and 99th percentiles printed of the light
and the heavy load by ``benchmarks/packet_path/fit.py``; those of the medium load were never fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slicepilot.env.compiled import njit
from slicepilot.env.simulator.scenario import Load

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PacketPath:
    """Delays of a packet beside the UPF's processing.

    Attributes:
        cost_cv: spread of a packet's cost, of its logarithm.
        wake_us: median of the wake-up after a long sleep, on a server that is idle otherwise.
        wake_sigma: spread of its logarithm.
        busy_pps: packets per second of all slices at which it takes half as long.
        idle_s: sleep after which the deep idle state pays.
        pause_s, paused_ratio: length of a gNB's pause, and share of the time that it pauses.
        window_packets: acknowledgements that a TCP connection has on the way at most.
    """

    cost_cv: float = 0.3
    wake_us: float = 92.4
    wake_sigma: float = 0.983
    busy_pps: float = 14_100.0
    idle_s: float = 600e-6
    pause_s: float = 17.8e-3
    paused_ratio: float = 0.0598
    window_packets: int = 132


def packets_per_s(load: Load) -> float:
    """Packets that a load sends a second."""
    return load.flows * load.mean_rate_mbps / (8e-6 * load.mean_packet_bytes)


def arrivals_s(load: Load, seconds: float, path: PacketPath, cost_us: float, rng: np.random.Generator) -> Array:
    """When packets of a load come to N3 (N,), in order: evenly for cbr, else at random, and after the gNB's pauses."""
    count = round(packets_per_s(load) * seconds)
    shares = np.arange(count) / max(count, 1) if load.kind == "cbr" else np.sort(rng.random(count))
    sent_s = shares * seconds
    starts_s = np.sort(rng.random(rng.poisson(seconds * path.paused_ratio / path.pause_s))) * seconds
    last = np.searchsorted(starts_s, sent_s, side="right") - 1
    ends_s = np.append(starts_s, -path.pause_s)[last] + path.pause_s
    held = sent_s < ends_s
    result = np.where(held, ends_s, sent_s)
    if load.kind == "tcp":
        # What exceeds the window is sent as the UPF lets packets through, three for each acknowledgement.
        pause = last[held]
        beyond = np.arange(len(pause)) - np.searchsorted(pause, pause) - path.window_packets + 1
        result[held] += np.maximum(beyond, 0) * 3e-6 * cost_us
        result.sort()
    return np.asarray(result, np.float64)


def delays_us(arrived_s: Array, node_pps: float, path: PacketPath, cost_us: float, rng: np.random.Generator) -> Array:
    """From N3 to N6, of packets (N,) in order of arrival.

    ``node_pps``: packets per second of all slices; ``cost_us``: the UPF's median work on a packet.
    """
    wake_us = path.wake_us * path.busy_pps / (path.busy_pps + node_pps)
    wakes_s = 1e-6 * wake_us * np.exp(path.wake_sigma * rng.standard_normal(len(arrived_s)))
    costs_s = 1e-6 * cost_us * np.exp(path.cost_cv * rng.standard_normal(len(arrived_s)))
    return np.asarray(1e6 * _served(arrived_s, costs_s, wakes_s, path.idle_s), np.float64)


@njit(cache=True, error_model="numpy")
def _served(arrived_s: np.ndarray, costs_s: np.ndarray, wakes_s: np.ndarray, idle_s: float) -> np.ndarray:
    """Time of each packet (N,) from its arrival until the thread has done it; a thread that slept has to wake."""
    result = np.empty_like(arrived_s)
    free_s = -1e9
    for packet in range(len(arrived_s)):
        slept_s = arrived_s[packet] - free_s
        if slept_s > 0.0:
            deep = slept_s * slept_s / (slept_s * slept_s + idle_s * idle_s)
            free_s = arrived_s[packet] + deep * wakes_s[packet]
        free_s += costs_s[packet]
        result[packet] = free_s - arrived_s[packet]
    return result
