"""What arrives at the node, and the noise around it, compiled by Numba over lanes and slices.

The compiled half of `slicepilot.env.simulator.exogenous`; nothing here depends on what an agent does. Arrays and loops
are as in `slicepilot.env.simulator.kernels`, whose exogenous fields these functions fill.
"""

from __future__ import annotations

import numpy as np

from slicepilot.env.compiled import njit

from .cpu import ONE, TINY, ZERO
from .kernels import (
    ACCESS_DELAY_MS,
    ACTIVE,
    ARRIVE_MBIT,
    BURST_US,
    CPU_S_PER_MBIT,
    DEFAULT_PACKET_BYTES,
    ELASTIC_MBPS,
    FLOWS,
    LANE_CHUNK,
    MBIT_PER_BYTE,
    MICRO,
    MILLION,
    NUM_SLICE_EXOGENOUS,
    PACKET_MBIT,
    PLACEMENT,
    RX_CPU_S_PER_MBIT,
)


@njit(cache=True, error_model="numpy")
def autoregress(
    state: np.ndarray,
    keep: np.ndarray,
    innovation: np.ndarray,
    scale: np.ndarray,
    offset: np.ndarray,
    draws: np.ndarray,
) -> None:
    """Turn white draws e (K, N) into AR(1) processes in place, from ``state`` x (N,) on: x <- keep x + innovation e.

    What is left in ``draws`` is scale x + offset.
    """
    for k in range(draws.shape[0]):
        for i in range(draws.shape[1]):
            value = keep[i] * state[i] + innovation[i] * draws[k, i]
            state[i] = value
            draws[k, i] = scale[i] * value + offset[i]


@njit(cache=True, error_model="numpy", inline="always")
def open_time(time_s: float, cycle_s: float, on_s: float) -> float:
    """How long a gate that opens for the first ``on_s`` of every cycle has been open in [0, time)."""
    whole = np.floor(time_s / cycle_s)
    return whole * on_s + min(time_s - whole * cycle_s, on_s)


@njit(cache=True, error_model="numpy", inline="always")
def interpolate(time_s: float, times: np.ndarray, factors: np.ndarray) -> float:
    """Piecewise-linear through the knots, constant outside them."""
    value = factors[0]
    for p in range(len(times) - 1):
        if time_s >= times[p + 1]:
            value = factors[p + 1]
        elif time_s > times[p]:
            value = factors[p] + (time_s - times[p]) / (times[p + 1] - times[p]) * (factors[p + 1] - factors[p])
    return value


# Source fields, axis 0 of (12, C, S, L); `Traffic` documents them.
SOURCE_ROWS = (
    "flow_mbps",
    "first_flows",
    "max_flows",
    "ramp_every_s",
    "packet_bytes",
    "burst_s",
    "cycle_s",
    "on_s",
    "phase_s",
    "start_s",
    "end_s",
    "elastic",
)
FLOW_MBPS, FIRST_FLOWS, MAX_FLOWS, RAMP_EVERY_S, PACKET_BYTES, SOURCE_BURST_S = range(6)
CYCLE_S, ON_S, PHASE_S, START_S, END_S, IS_ELASTIC = range(6, 12)
# Path and cost rows, axis 0 of (6, L).
PATH_ROWS = ("access_mbps", "access_buffer_ms", "upf_cost_us", "rx_cost_us", "ingress_mbps", "ingress_buffer_ms")
# Noise, axis 1 of (K, 4, S, L).
ACCESS_NOISE, CPU_NOISE, LOAD_NOISE, PLACEMENT_NOISE = range(4)
NUM_NOISE = 4
# Rows of a working table of arrivals, after the exogenous rows: sums over sources, and the flows and rate of a source.
TOTAL, ELASTIC_TOTAL, PACKETS, SOURCE_FLOWS, SOURCE_RATE = range(NUM_SLICE_EXOGENOUS, NUM_SLICE_EXOGENOUS + 5)


@njit(cache=True, error_model="numpy")
def arrivals(
    first_steps: np.ndarray,
    sources: np.ndarray,
    profile_time_s: np.ndarray,
    profile_factor: np.ndarray,
    absent_from_s: np.ndarray,
    absent_to_s: np.ndarray,
    path: np.ndarray,
    replayed: np.ndarray,
    noise: np.ndarray,
    period: np.ndarray,
    block: np.ndarray,
) -> None:
    """Fill ``block`` (K, 10, S, L): the exogenous figures of K steps of each lane from ``first_steps`` (L,).

    sources (12, C, S, L), profile knots (C, S, L, P), absences (S, L), path (6, L), replayed (K, C, S, L): factors on
    the rates of sources, or empty; noise (K, 4, S, L): factors of the access rate, the CPU cost, the load and the share
    of the CPU; period (L,). The on/off gate is integrated over the period exactly.

    Loops are cut as `slicepilot.env.simulator.kernels.advance` says. Time is float64: 20 minutes in periods of 2 ms are
    beyond float32.
    """
    steps, _, num_slices, lanes = block.shape
    num_sources, knots = sources.shape[1], profile_time_s.shape[3]
    for first in range(0, lanes, LANE_CHUNK):
        stop = min(first + LANE_CHUNK, lanes)
        v = np.empty((NUM_SLICE_EXOGENOUS + 5, LANE_CHUNK), np.float32)
        ingress = np.empty(LANE_CHUNK, np.float32)
        for k in range(steps):
            ingress[:] = ZERO
            for s in range(num_slices):
                for lane in range(first, stop):
                    i = lane - first
                    time_s = (first_steps[lane] + k) * period[lane]
                    present = (time_s < absent_from_s[s, lane]) | (time_s >= absent_to_s[s, lane])
                    v[ACTIVE, i] = ONE if present else ZERO
                    v[TOTAL, i] = v[ELASTIC_TOTAL, i] = v[PACKETS, i] = v[BURST_US, i] = v[FLOWS, i] = ZERO
                for c in range(num_sources):
                    for lane in range(first, stop):
                        i = lane - first
                        time_s, start_s = (first_steps[lane] + k) * period[lane], sources[START_S, c, s, lane]
                        sends = (time_s >= start_s) & (time_s < sources[END_S, c, s, lane])
                        joined = np.float32(np.floor((time_s - start_s) / sources[RAMP_EVERY_S, c, s, lane]))
                        flows = min(sources[FIRST_FLOWS, c, s, lane] + joined, sources[MAX_FLOWS, c, s, lane])
                        v[SOURCE_FLOWS, i] = v[ACTIVE, i] * (flows if sends else ZERO)
                    gated = False
                    for lane in range(first, stop):
                        i = lane - first
                        gated |= sources[ON_S, c, s, lane] < sources[CYCLE_S, c, s, lane]
                        v[SOURCE_RATE, i] = v[SOURCE_FLOWS, i] * sources[FLOW_MBPS, c, s, lane]
                    if gated:
                        for lane in range(first, stop):
                            dt, cycle_s, on_s = period[lane], sources[CYCLE_S, c, s, lane], sources[ON_S, c, s, lane]
                            begin = (first_steps[lane] + k) * dt + sources[PHASE_S, c, s, lane]
                            opened = open_time(begin + dt, cycle_s, on_s) - open_time(begin, cycle_s, on_s)
                            v[SOURCE_RATE, lane - first] *= np.float32(opened / dt) if on_s < cycle_s else ONE
                    if len(replayed):
                        for lane in range(first, stop):
                            v[SOURCE_RATE, lane - first] *= replayed[k, c, s, lane]
                    if knots > 1:
                        for lane in range(first, stop):
                            v[SOURCE_RATE, lane - first] *= interpolate(
                                (first_steps[lane] + k) * period[lane],
                                profile_time_s[c, s, lane],
                                profile_factor[c, s, lane],
                            )
                    for lane in range(first, stop):
                        i = lane - first
                        rate = v[SOURCE_RATE, i]
                        v[TOTAL, i] += rate
                        v[ELASTIC_TOTAL, i] += rate * sources[IS_ELASTIC, c, s, lane]
                        v[PACKETS, i] += rate / sources[PACKET_BYTES, c, s, lane]
                        v[BURST_US, i] += MILLION * rate * sources[SOURCE_BURST_S, c, s, lane]
                        v[FLOWS, i] += v[SOURCE_FLOWS, i]
                for lane in range(first, stop):
                    i = lane - first
                    total, elastic, packets = v[TOTAL, i], v[ELASTIC_TOTAL, i], v[PACKETS, i]
                    packet_mbit = MBIT_PER_BYTE * (total / packets if packets > ZERO else DEFAULT_PACKET_BYTES)
                    offered = (total - elastic) * noise[k, LOAD_NOISE, s, lane]
                    capacity = path[0, lane] * noise[k, ACCESS_NOISE, s, lane]
                    v[ARRIVE_MBIT, i] = min(offered, capacity) * period[lane]
                    v[ELASTIC_MBPS, i] = min(elastic, max(capacity - offered, ZERO))
                    v[CPU_S_PER_MBIT, i] = MICRO * path[2, lane] * noise[k, CPU_NOISE, s, lane] / packet_mbit
                    v[RX_CPU_S_PER_MBIT, i] = MICRO * path[3, lane] / packet_mbit
                    v[BURST_US, i] /= max(total, TINY)
                    v[FLOWS, i] = max(v[FLOWS, i], ONE)
                    v[PLACEMENT, i] = noise[k, PLACEMENT_NOISE, s, lane]
                    v[PACKET_MBIT, i] = packet_mbit
                    v[ACCESS_DELAY_MS, i] = path[1, lane] * path[0, lane] / capacity if offered > capacity else ZERO
                for lane in range(first, stop):
                    ingress[lane - first] += v[ARRIVE_MBIT, lane - first]
                for f in range(NUM_SLICE_EXOGENOUS):
                    for lane in range(first, stop):
                        block[k, f, s, lane] = v[f, lane - first]
            # The link over which all slices' packets come to the node.
            crowded = False
            for lane in range(first, stop):
                i = lane - first
                ingress[i] = path[4, lane] * period[lane] / max(ingress[i], TINY)
                crowded |= ingress[i] < ONE
            if crowded:
                for s in range(num_slices):
                    for lane in range(first, stop):
                        i = lane - first
                        through = min(ingress[i], ONE)
                        block[k, ARRIVE_MBIT, s, lane] *= through
                        block[k, ACCESS_DELAY_MS, s, lane] += path[5, lane] if through < ONE else ZERO
