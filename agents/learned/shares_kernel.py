"""The arithmetic of `slicepilot.agents.learned.shares`.

In float64, because decisions turn on small differences of sums.
"""

from __future__ import annotations

import math

import numpy as np

from slicepilot.env.arrays import FloatArray
from slicepilot.env.compiled import kernel
from slicepilot.env.encoding import (
    CPU_AXIS_PER_THREAD_MCPU,
    CPUS_RANGE,
    FEATURES,
    NUM_FEATURES,
    TELEMETRY_SCALE,
    UPLINK_RANGE_MBPS,
)

ASKED = {
    "offered_mbps": "offered_mbps",
    "committed_mbps": "carried_mbps",
    "carried_mbps": "carried_mbps",
    "cpu_use_mcpu": "cpu_use_mcpu",
}
"""Columns of rates in Mbit/s, then of CPU time in mCPU, with the telemetry scales that they are encoded by."""
ACTIVE, WEIGHT = FEATURES.index("active"), FEATURES.index("relative_weight")
UPLINK_USE, UPLINK_CAPACITY = FEATURES.index("uplink_use_ratio"), FEATURES.index("uplink_capacity")
CPU_IDLE, LOGICAL_CPUS = FEATURES.index("cpu_idle_ratio"), FEATURES.index("logical_cpus")
_scales = [TELEMETRY_SCALE[field] for field in ASKED.values()]
COLUMNS = np.array([FEATURES.index(feature) for feature in ASKED])
REFERENCE = np.array([reference for reference, _ in _scales])
SPAN = np.array([math.log1p(full / reference) for reference, full in _scales])
UPLINK_LOW, UPLINK_SPAN = UPLINK_RANGE_MBPS[0], math.log(UPLINK_RANGE_MBPS[1] / UPLINK_RANGE_MBPS[0])
CPUS_LOW, CPUS_SPAN = CPUS_RANGE[0], math.log(CPUS_RANGE[1] / CPUS_RANGE[0])
LEAST_LIMIT_MCPU = CPU_AXIS_PER_THREAD_MCPU[0]
LIMIT_AXIS = math.log(CPU_AXIS_PER_THREAD_MCPU[1] / LEAST_LIMIT_MCPU)
RANK_POWER = 8  # how sharply ranks differ: two that differ by a tenth count 0.32 and 0.68
MAX_SHARE = 2.0
MAX_PER_CPU = 1e3
LEAST_NEED = 0.05
# Below this utilisation, or use in Mbit/s or CPUs, a capacity is taken from what the node is said to have.
IDLE, NOTHING, TINY = 0.05, 1e-3, 1e-6
OFFERED, COMMITTED, CARRIED, CPU_USE, NEED_UPLINK, NEED_CPU, PROMISED_CPU, RANK = range(8)


@kernel
def add_shares(table: FloatArray) -> None:
    """Fill in the columns behind the observation's, lane by lane."""
    lanes, num_slices, _ = table.shape
    work = np.empty((8, num_slices))
    for lane in range(lanes):
        rows = table[lane]
        # The node's figures are the same in every row of a slice that is there.
        present = uplink_use = uplink = idle = logical = 0.0
        for s in range(num_slices):
            there = rows[s, ACTIVE] > 0.5
            for k in range(4):
                work[k, s] = REFERENCE[k] * math.expm1(rows[s, COLUMNS[k]] * SPAN[k]) if there else 0.0
            if there:
                present += 1.0
                uplink_use += rows[s, UPLINK_USE]
                uplink += rows[s, UPLINK_CAPACITY]
                idle += rows[s, CPU_IDLE]
                logical += rows[s, LOGICAL_CPUS]
        present = max(present, 1.0)
        logical_cpus = CPUS_LOW * math.exp(logical / present * CPUS_SPAN)
        declared_mbps = UPLINK_LOW * math.exp(uplink / present * UPLINK_SPAN)
        uplink_mbps = _available(work[CARRIED].sum(), uplink_use / present, declared_mbps)
        cpus = _available(1e-3 * work[CPU_USE].sum(), 1.0 - idle / present, logical_cpus)
        _needs(rows, work, uplink_mbps, cpus)
        weight_sum = 0.0
        for s in range(num_slices):
            if rows[s, ACTIVE] > 0.5:
                weight_sum += max(rows[s, WEIGHT], 0.0)
        for s in range(num_slices):
            out = rows[s, NUM_FEATURES:]
            if not rows[s, ACTIVE] > 0.5:
                out[:] = 0.0
                continue
            _write(out, s, work, logical_cpus, cpus, max(rows[s, WEIGHT], 0.0) / max(weight_sum, TINY))


@kernel(inline="always")
def _available(used: float, utilisation: float, declared: float) -> float:
    """Capacity from what is used at a utilisation, or as declared if hardly any is."""
    return used / max(utilisation, IDLE) if utilisation > IDLE and used > NOTHING else declared


@kernel(inline="always")
def _needs(rows: FloatArray, work: np.ndarray, uplink_mbps: float, cpus: float) -> None:
    """Demands and needs as shares of what the node has, and ranks."""
    num_slices = len(rows)
    for s in range(num_slices):
        for k in range(4):
            share = work[k, s] / (1e3 * cpus if k == CPU_USE else uplink_mbps)
            work[k, s] = min(max(share, 0.0), MAX_SHARE)
    # CPU over uplink: what carrying takes, from those that carry something.
    together = work[CPU_USE].sum() / max(work[CARRIED].sum(), TINY)
    for s in range(num_slices):
        carried, committed = work[CARRIED, s], work[COMMITTED, s]
        cost = work[CPU_USE, s] / carried if carried > TINY else together
        rate = min(work[OFFERED, s], committed)
        work[NEED_UPLINK, s], work[NEED_CPU, s], work[PROMISED_CPU, s] = rate, cost * rate, cost * committed
        weight = max(rows[s, WEIGHT], 0.0) if rows[s, ACTIVE] > 0.5 else 0.0
        work[RANK, s] = max(weight / max(committed + cost * committed, NOTHING), TINY) ** RANK_POWER


@kernel(inline="always")
def _write(out: FloatArray, s: int, work: np.ndarray, logical_cpus: float, cpus: float, weight: float) -> None:
    """The columns of one slice."""
    need_uplink, need_cpu, promised_cpu = work[NEED_UPLINK, s], work[NEED_CPU, s], work[PROMISED_CPU, s]
    over_uplink, over_cpu = -0.5 * need_uplink, -0.5 * need_cpu
    for other in range(work.shape[1]):
        before = work[RANK, other] / (work[RANK, other] + work[RANK, s])
        over_uplink += before * work[NEED_UPLINK, other]
        over_cpu += before * work[NEED_CPU, other]
    for k in range(4):
        out[k] = work[k, s]
    out[4], out[5] = min(need_uplink, MAX_SHARE), min(need_cpu, MAX_SHARE)
    out[6], out[7] = min(over_uplink, MAX_SHARE), min(over_cpu, MAX_SHARE)
    # Without a least need a slice that needs next to nothing would be all or nothing by rounding errors.
    missing_uplink = max(over_uplink + need_uplink - 1.0, 0.0) / max(need_uplink, LEAST_NEED)
    # The CPUs there are over those that the slices have: other work on the node may have to yield to them, or not.
    for k in range(2):
        size = logical_cpus / cpus if k else 1.0
        missing_cpu = max(over_cpu + need_cpu - size, 0.0) / max(need_cpu, LEAST_NEED)
        granted = max(1.0 - max(missing_uplink, missing_cpu), 0.0)
        out[8 + k] = granted
        out[10 + k] = _limit(granted * need_cpu * 1e3 * cpus)
    out[12], out[13] = _limit(need_cpu * 1e3 * cpus), _limit(promised_cpu * 1e3 * cpus)
    out[14] = weight
    per_cpu = weight / max(promised_cpu * cpus, NOTHING)
    out[15] = math.log(min(max(per_cpu, 1.0 / MAX_PER_CPU), MAX_PER_CPU)) / math.log(MAX_PER_CPU)


@kernel(inline="always")
def _limit(mcpu: float) -> float:
    """Its position on the axis of CPU limits."""
    return min(math.log(max(mcpu / LEAST_LIMIT_MCPU, 1.0)) / LIMIT_AXIS, 1.0)
