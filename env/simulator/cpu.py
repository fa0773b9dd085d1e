"""How the slices' UPFs share the node's CPUs (Linux, CFS)."""

from __future__ import annotations

import numpy as np

from slicepilot.data.nice_weights import NICE_0_WEIGHT, PRIO_TO_WEIGHT
from slicepilot.env.compiled import kernel

Scalar = float | np.float32

SHARES_PER_MCPU = np.float32(1.024)
BEST_EFFORT_SHARES = np.float32(2.0)
# Weight of each nice level -20..19 over that of level 0.
NICE_WEIGHT = np.array(PRIO_TO_WEIGHT, np.float32) / NICE_0_WEIGHT
ZERO, ONE, TINY = np.float32(0.0), np.float32(1.0), np.float32(1e-9)
MAX_FILL_ROUNDS = 16


@kernel(inline="always")
def group_weight(request_mcpu: Scalar, nice: Scalar, nice_ranks_groups: bool) -> Scalar:
    """CFS weight of a slice's cgroup.

    A Kubernetes CPU request of n mCPU gives n * 1024 / 1000 shares, a pod without a request (BestEffort) gets 2
    (kubelet, ``MilliCPUToShares``). Nice of group scope multiplies by the kernel's table; nice of process scope only
    ranks tasks inside one group, so between slices it changes nothing.
    """
    weight = max(request_mcpu * SHARES_PER_MCPU, BEST_EFFORT_SHARES)
    return weight * NICE_WEIGHT[min(max(int(nice), -20), 19) + 20] if nice_ranks_groups else weight


@kernel(inline="always")
def thread_speed(busy: Scalar, cores: Scalar, logical: Scalar, smt_yield: Scalar) -> Scalar:
    """Speed of a thread relative to a core of its own, when the demand for CPU time is ``busy`` logical CPUs.

    Up to one thread per core nothing is shared; with all logical CPUs busy every thread runs at ``smt_yield``.
    """
    siblings = logical - cores
    shared = max(busy - cores, ZERO) / siblings if siblings > ZERO else ZERO
    return max(ONE - (ONE - smt_yield) * shared, smt_yield)


@kernel(inline="always")
def sent_ratio(sent: Scalar, served: Scalar) -> Scalar:
    """The share of a UPF's output that leaves the node: pacer and uplink drop the rest. 1 where nothing is known."""
    return min(sent / max(served, TINY), ONE) if served > ZERO else ONE


@kernel
def water_fill(capacity: np.ndarray, demand: np.ndarray, weight: np.ndarray, share: np.ndarray) -> None:
    """Divide ``capacity`` by weight, nobody getting more than demanded: work-conserving weighted max-min fairness.

    capacity (N,), the others (S, N or more); ``share`` is written. Every round satisfies all demands below the current
    level; the level rises with what they leave, so the loop ends after at most as many rounds as there are levels. A
    lane that is done stays as it is in the rounds that others need.
    """
    lanes = len(capacity)
    left, level, total = np.empty_like(capacity), np.empty_like(capacity), np.zeros_like(capacity)
    for s in range(len(demand)):
        for i in range(lanes):
            total[i] += demand[s, i]
    contended = False
    for i in range(lanes):
        contended |= total[i] > capacity[i]
        left[i] = capacity[i]
    # Negative: not settled yet.
    for s in range(len(demand)):
        for i in range(lanes):
            share[s, i] = -ONE if total[i] > capacity[i] else demand[s, i]
    if not contended:
        return
    for _ in range(MAX_FILL_ROUNDS):
        total[:] = ZERO
        for s in range(len(demand)):
            for i in range(lanes):
                total[i] += weight[s, i] if share[s, i] < ZERO else ZERO
        for i in range(lanes):
            level[i] = max(left[i], ZERO) / total[i] if total[i] > ZERO else ZERO
        settled = False
        for s in range(len(demand)):
            for i in range(lanes):
                settles = (share[s, i] < ZERO) & (demand[s, i] <= level[i] * weight[s, i])
                share[s, i] = demand[s, i] if settles else share[s, i]
                left[i] -= demand[s, i] if settles else ZERO
                settled |= settles
        if not settled:
            break
    for s in range(len(demand)):
        for i in range(lanes):
            share[s, i] = level[i] * weight[s, i] if share[s, i] < ZERO else share[s, i]


@kernel(inline="always")
def cfs_available(
    start_s: Scalar, period_s: Scalar, cfs_s: Scalar, quota_s: Scalar, budget_s: Scalar, threads: Scalar
) -> Scalar:
    """CPU time a group may use in a control period shorter than the CFS period, before it shares CPUs with others.

    It runs until its budget is used up and waits for the refill at the next multiple of the CFS period.
    """
    until_refill = cfs_s - start_s % cfs_s
    if until_refill > period_s:
        return min(budget_s, threads * period_s)
    return min(budget_s, threads * until_refill) + min(quota_s, threads * (period_s - until_refill))


@kernel(inline="always")
def cfs_budget_left(
    start_s: Scalar, period_s: Scalar, cfs_s: Scalar, quota_s: Scalar, budget_s: Scalar, runtime_s: Scalar
) -> Scalar:
    """Budget after a control period in which a group got ``runtime_s``, spread evenly over it.

    Unused budget does not carry over (kernel, sched-bwc: no burst).
    """
    until_refill = cfs_s - start_s % cfs_s
    if until_refill > period_s:
        return max(budget_s - runtime_s, ZERO)
    before = min(budget_s, runtime_s * until_refill / period_s)
    return max(quota_s - (runtime_s - before), ZERO)
