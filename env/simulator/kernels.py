"""The node's physics, one control period per call, compiled by Numba over lanes and slices.

A packet's way: access path -> N3 socket buffer -> UPF thread (CPU) -> egress pacer -> shared N6 uplink. Queues are
fluid; what happens inside a control period (frame bursts, CFS throttling, run-queue waits) enters the delay by its mean
and its 99th percentile. Arrays are float32 and C-contiguous, named axes first: (field, S, L) with S slices and L lanes.

Why compiled: the same step as NumPy calls cost 190 us with one lane (the call overhead of some 120 operations) and
0.7 us a lane with 4096; `slicepilot bench sim` prints what it costs now.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

# Exogenous fields per slice, axis 1 of a block (K, E, S, L), and per node, axis 1 of (K, EN, L).
ARRIVE_MBIT, ELASTIC_MBPS, CPU_S_PER_MBIT, RX_CPU_S_PER_MBIT, BURST_US, FLOWS, PACKET_MBIT, ACCESS_DELAY_MS, ACTIVE = (
    range(9)
)
NUM_SLICE_EXOGENOUS = 9
UPLINK_MBPS, CPU_FACTOR = range(2)
NUM_NODE_EXOGENOUS = 2

# State fields, axis 0 of (7, S, L).
N3_MBIT, PACER_LEAD_S, PACER_MBIT, UPLINK_MBIT, TCP_MBPS, CFS_BUDGET_S, TX_MBPS = range(7)
NUM_STATE = 7

# Where packets are dropped, axis 0 of (3, S, L).
DROP_N3, DROP_PACER, DROP_UPLINK = range(3)
NUM_DROPS = 3

# Hardware rows, axis 0 of (H, L); `HardwareArrays.kernel_rows` fills them in this order.
HARDWARE_ROWS = (
    "logical_cpus",
    "physical_cores",
    "smt_yield",
    "tx_cost_us",
    "weight_leak",
    "cfs_period_s",
    "sched_slice_us",
    "n3_buffer_packets",
    "pacer_horizon_s",
    "pacer_burst_s",
    "pacer_packets_per_flow",
    "uplink_buffer_s",
)

SHARES_PER_MCPU = 1.024
BEST_EFFORT_SHARES = 2.0
# Weight of each nice level -20..19 over that of level 0 (kernel, ``sched_prio_to_weight``): about 1.25 a level.
NICE_WEIGHT = (
    np.array(
        [
            *(88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916),
            *(9548, 7620, 6100, 4904, 3906, 3121, 2501, 1991, 1586, 1277),
            *(1024, 820, 655, 526, 423, 335, 272, 215, 172, 137),
            *(110, 87, 70, 56, 45, 36, 29, 23, 18, 15),
        ]
    )
    / 1024.0
)
UNLIMITED = 1e9
TINY = 1e-9
MIN_CAPACITY_CPUS = 0.05
# A CFS period whose mean demand lies within 1/8 of the quota is throttled or not by chance.
THROTTLE_SLOPE = 4.0
# Waits in a run queue are about exponential: the 99th percentile is ln(100) times the mean.
EXPONENTIAL_P99 = 4.605
MAX_WAIT_SLICES = 25.0
TCP_ROUND_TRIP_S = 0.2
TCP_LOSS_SEEN = 0.01
MAX_FILL_ROUNDS = 16
DEFAULT_PACKET_BYTES = 1470.0
LANE_CHUNK = 128
# Below this many slices in all, starting threads costs more than it gains.
PARALLEL_FROM = 4096


@njit(cache=True, error_model="numpy", inline="always")
def group_weight(request_mcpu: float, nice: float, nice_ranks_groups: bool) -> float:
    """CFS weight of a slice's cgroup.

    A Kubernetes CPU request of n mCPU gives n * 1024 / 1000 shares, a pod without one (BestEffort) gets 2 (kubelet,
    ``MilliCPUToShares``). Nice of group scope multiplies by the kernel's table; nice of process scope only ranks tasks
    inside one group, so between slices it changes nothing.
    """
    weight = max(request_mcpu * SHARES_PER_MCPU, BEST_EFFORT_SHARES)
    return weight * NICE_WEIGHT[int(nice) + 20] if nice_ranks_groups else weight


@njit(cache=True, error_model="numpy", inline="always")
def thread_speed(busy: float, cores: float, logical: float, smt_yield: float) -> float:
    """Speed of a thread relative to a core of its own, when ``busy`` logical CPUs' worth of work wants to run.

    Up to one thread per core nothing is shared; with all logical CPUs busy every thread runs at ``smt_yield``.
    """
    if busy <= cores or logical <= cores:
        return 1.0
    return max(1.0 - (1.0 - smt_yield) * (busy - cores) / (logical - cores), smt_yield)


@njit(cache=True, error_model="numpy")
def water_fill(capacity: float, demand: np.ndarray, weight: np.ndarray, share: np.ndarray) -> None:
    """Divide ``capacity`` by weight, nobody getting more than demanded: work-conserving weighted max-min fairness.

    All arrays (S,); ``share`` is written. Every round satisfies all demands below the current level; the level rises
    with what they leave, so the loop ends after at most as many rounds as there are levels.
    """
    share[:] = -1.0
    left = capacity
    for _ in range(MAX_FILL_ROUNDS):
        total = 0.0
        for s in range(len(demand)):
            if share[s] < 0:
                total += weight[s]
        if total <= 0:
            break
        level = max(left, 0.0) / total
        settled = False
        for s in range(len(demand)):
            if share[s] < 0 and demand[s] <= level * weight[s]:
                share[s] = demand[s]
                left -= demand[s]
                settled = True
        if not settled:
            for s in range(len(demand)):
                if share[s] < 0:
                    share[s] = level * weight[s]
            break
    for s in range(len(demand)):
        share[s] = max(share[s], 0.0)


@njit(cache=True, error_model="numpy", inline="always")
def cfs_runtime(
    start_s: float, period_s: float, cfs_s: float, quota_s: float, budget_s: float, speed: float
) -> tuple[float, float]:
    """CPU time a thread gets in a control period shorter than the CFS period, and the budget it leaves.

    It runs at ``speed`` (CPU-seconds per second) until its budget is used up and waits for the refill at the next
    multiple of the CFS period. Unused budget does not carry over (kernel, sched-bwc: no burst).
    """
    until_refill = cfs_s - start_s % cfs_s
    if until_refill > period_s:
        used = min(speed * period_s, budget_s)
        return used, budget_s - used
    before = min(speed * until_refill, budget_s)
    after = min(speed * (period_s - until_refill), quota_s)
    return before + after, quota_s - after


def _advance(
    step: int,
    k: int,
    slice_block: np.ndarray,
    node_block: np.ndarray,
    hardware: np.ndarray,
    period: np.ndarray,
    threads: np.ndarray,
    request_mcpu: np.ndarray,
    cpu_limit_mcpu: np.ndarray,
    nice: np.ndarray,
    nice_ranks_groups: bool,
    egress_mbps: np.ndarray,
    state: np.ndarray,
    drops: np.ndarray,
    telemetry: np.ndarray,
    node: np.ndarray,
    valid: np.ndarray,
) -> None:
    """Play control period number ``step`` with row ``k`` of the exogenous block; updates the last five arrays.

    slice_block (K, 9, S, L), node_block (K, 2, L), hardware (12, L), period (L,) in s; threads, requests and knobs
    (S, L); state (7, S, L), drops (3, S, L) in Mbit of this period, telemetry (8, S, L), node (2, L), valid (S, L).
    """
    num_slices, lanes = threads.shape
    for lane in prange(lanes):
        logical, cores, smt_yield = hardware[0, lane], hardware[1, lane], hardware[2, lane]
        tx_cost_us, leak = hardware[3, lane], hardware[4, lane]
        cfs_s, slice_us, buffer_packets = hardware[5, lane], hardware[6, lane], hardware[7, lane]
        horizon_s, burst_s, packets_per_flow = hardware[8, lane], hardware[9, lane], hardware[10, lane]
        uplink_buffer_s = hardware[11, lane]
        dt = period[lane]
        uplink_mbps, cpu_factor = node_block[k, UPLINK_MBPS, lane], node_block[k, CPU_FACTOR, lane]
        scratch = np.empty((6, num_slices))
        work, want, run, weight, share, left = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4], scratch[5]

        # Arrivals, and softirq work: it precedes all threads. What is transmitted lags by one period.
        kernel = 0.0
        wanted = 0.0
        for s in range(num_slices):
            exo = slice_block[k, :, s, lane]
            elastic = min(state[TCP_MBPS, s, lane], exo[ELASTIC_MBPS])
            arrived = exo[ARRIVE_MBIT] + elastic * dt
            kernel += exo[RX_CPU_S_PER_MBIT] * arrived / dt
            kernel += state[TX_MBPS, s, lane] * 1e-6 * tx_cost_us / exo[PACKET_MBIT]
            work[s] = state[N3_MBIT, s, lane] + arrived
            want[s] = work[s] * exo[CPU_S_PER_MBIT] / dt
            quota = min(cpu_limit_mcpu[s, lane] * 1e-3, UNLIMITED)
            wanted += min(want[s], threads[s, lane], quota)
            weight[s] = group_weight(request_mcpu[s, lane], nice[s, lane], nice_ranks_groups)
            telemetry[0, s, lane] = arrived / dt

        # CPU time: SMT slows threads down when siblings are busy; groups share what softirqs leave.
        speed = thread_speed(wanted + kernel, cores, logical, smt_yield) * cpu_factor
        kernel /= speed
        capacity = max(logical - kernel, MIN_CAPACITY_CPUS)
        total_run = 0.0
        for s in range(num_slices):
            want[s] /= speed
            quota = min(cpu_limit_mcpu[s, lane] * 1e-3, UNLIMITED)
            run[s] = min(want[s], threads[s, lane], quota)
            total_run += run[s]
        water_fill(capacity, run, weight, share)
        # Part of the work runs where group weights do not order it (softirq, other groups' queues): in proportion.
        squeeze = min(1.0, capacity / max(total_run, TINY))
        used = kernel
        sent_mbit = 0.0
        waiting_mbit = 0.0
        for s in range(num_slices):
            exo = slice_block[k, :, s, lane]
            got = (1.0 - leak) * share[s] + leak * run[s] * squeeze
            used += got
            quota = min(cpu_limit_mcpu[s, lane] * 1e-3, UNLIMITED)
            throttled = min(max(THROTTLE_SLOPE * (want[s] / quota - 1.0) + 0.5, 0.0), 1.0)
            wait_us = slice_us * min(max(run[s] / max(got, TINY) - 1.0, 0.0), MAX_WAIT_SLICES) if run[s] > 0 else 0.0
            off = max(1.0 - quota / threads[s, lane], 0.0)
            off_us = 1e6 * cfs_s * off
            burst = exo[BURST_US] * min(run[s], 1.0)
            p50 = 0.5 * burst + wait_us + 0.5 * off * off_us * throttled
            p99 = burst + EXPONENTIAL_P99 * wait_us + off_us * throttled

            # N3 socket buffer, served at the CPU's rate.
            mbit_per_cpu_s = speed / exo[CPU_S_PER_MBIT]
            rate = max(got * mbit_per_cpu_s, TINY)
            served = min(work[s], rate * dt)
            if dt < cfs_s:
                quota_s = quota * cfs_s
                pace = threads[s, lane] if want[s] > quota else got
                budget = min(state[CFS_BUDGET_S, s, lane], quota_s)
                runtime, budget = cfs_runtime(step * dt, dt, cfs_s, quota_s, budget, min(pace, want[s]))
                state[CFS_BUDGET_S, s, lane] = budget
                served = min(work[s], runtime * mbit_per_cpu_s)
                got = runtime / dt
            before, rest = state[N3_MBIT, s, lane], work[s] - served
            after = min(rest, buffer_packets * exo[PACKET_MBIT])
            drops[DROP_N3, s, lane] = rest - after
            state[N3_MBIT, s, lane] = after
            p50 += 0.5e6 * (before + after) / rate
            p99 += 1e6 * max(before, after) / rate

            # Egress pacer: departures are scheduled at the configured rate; beyond the horizon packets are refused. The
            # schedule advances for every admitted packet, also for those that the queue behind it drops because a flow
            # may hold only so many packets there: with the schedule at its horizon T, n packets per flow let through
            # n / T. That is why a rate below what the UPF delivers collapses instead of shaping (Linux sch_fq,
            # flow_limit 100; Cilium bpf/lib/edt.h, drop horizon 2 s).
            egress = egress_mbps[s, lane]
            egress = min(egress, UNLIMITED) if egress > 0 else UNLIMITED
            lead = max(state[PACER_LEAD_S, s, lane] + served / egress - dt, -burst_s)
            refused = min(max(lead - horizon_s, 0.0) * egress, served)
            lead = min(lead, horizon_s)
            ahead = max(lead, 0.0)
            room = packets_per_flow * exo[FLOWS] * exo[PACKET_MBIT]
            available = state[PACER_MBIT, s, lane] + served - refused
            stored = min(ahead * egress, room, available)
            out = min(available - stored, room * dt / max(ahead, TINY))
            drops[DROP_PACER, s, lane] = refused + (available - stored - out)
            state[PACER_LEAD_S, s, lane] = lead
            state[PACER_MBIT, s, lane] = stored
            own_us = 1e6 * exo[CPU_S_PER_MBIT] * exo[PACKET_MBIT]
            telemetry[2, s, lane] = p50 + 1e6 * ahead + own_us
            telemetry[3, s, lane] = p99 + 1e6 * ahead + own_us
            telemetry[5, s, lane] = 1000.0 * got
            telemetry[6, s, lane] = throttled
            telemetry[7, s, lane] = wait_us
            left[s] = out
            sent_mbit += out
            waiting_mbit += state[UPLINK_MBIT, s, lane]

        # Shared uplink: one FIFO for all slices.
        backlog = waiting_mbit + sent_mbit
        through = min(1.0, uplink_mbps * dt / max(backlog, TINY))
        over = backlog * (1.0 - through)
        keep = min(1.0, uplink_buffer_s * uplink_mbps / max(over, TINY))
        seconds_per_mbit = 1.0 / max(uplink_mbps, TINY)
        uplink_p50_us = 0.5e6 * (waiting_mbit + over * keep) * seconds_per_mbit
        uplink_p99_us = 1e6 * max(waiting_mbit, over * keep) * seconds_per_mbit
        for s in range(num_slices):
            queued = state[UPLINK_MBIT, s, lane] + left[s]
            sent = queued * through
            stay = (queued - sent) * keep
            drops[DROP_UPLINK, s, lane] = queued - sent - stay
            state[UPLINK_MBIT, s, lane] = stay
            carried = sent / dt
            state[TX_MBPS, s, lane] = carried
            offered = telemetry[0, s, lane]
            loss = max(1.0 - carried / max(offered, TINY), 0.0) if offered > 0 else 0.0
            telemetry[1, s, lane] = carried
            telemetry[2, s, lane] += uplink_p50_us
            telemetry[3, s, lane] += uplink_p99_us
            telemetry[4, s, lane] = loss
            valid[s, lane] = slice_block[k, ACTIVE, s, lane] > 0
            if not valid[s, lane]:
                telemetry[:, s, lane] = 0.0
            limit = slice_block[k, ELASTIC_MBPS, s, lane]
            if limit > 0:
                # TCP-like sources: back off by what was lost, else probe upwards, within about a round trip.
                tcp = state[TCP_MBPS, s, lane]
                goal = 0.9 * carried if loss > TCP_LOSS_SEEN else 1.3 * tcp + 0.5
                tcp += (1.0 - math.exp(-dt / TCP_ROUND_TRIP_S)) * (goal - tcp)
                state[TCP_MBPS, s, lane] = min(max(tcp, 0.0), limit)
        node[0, lane] = max(1.0 - used / logical, 0.0)
        node[1, lane] = min(backlog / max(uplink_mbps * dt, TINY), 1.0)


advance_serial = njit(cache=True, error_model="numpy")(_advance)
advance_parallel = njit(cache=True, error_model="numpy", parallel=True)(_advance)


@njit(cache=True, error_model="numpy")
def autoregress(state: np.ndarray, keep: np.ndarray, innovation: np.ndarray, draws: np.ndarray) -> None:
    """Turn white draws (K, N) into AR(1) processes in place, from ``state`` (N,) on: x <- keep x + innovation e."""
    for k in range(draws.shape[0]):
        for i in range(draws.shape[1]):
            state[i] = keep[i] * state[i] + innovation[i] * draws[k, i]
            draws[k, i] = state[i]


@njit(cache=True, error_model="numpy", inline="always")
def open_time(time_s: float, cycle_s: float, on_s: float) -> float:
    """How long a gate that opens for the first ``on_s`` of every cycle has been open in [0, time)."""
    whole = math.floor(time_s / cycle_s)
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
# Path and cost rows, axis 0 of (6, L).
PATH_ROWS = ("access_mbps", "access_cv", "access_buffer_ms", "upf_cost_us", "cpu_cv", "rx_cost_us")


def _arrivals(
    first_step: int,
    sources: np.ndarray,
    profile_time_s: np.ndarray,
    profile_factor: np.ndarray,
    absent_from_s: np.ndarray,
    absent_to_s: np.ndarray,
    path: np.ndarray,
    load_cv: np.ndarray,
    noise: np.ndarray,
    period: np.ndarray,
    block: np.ndarray,
) -> None:
    """Fill ``block`` (K, 9, S, L): the exogenous figures of K steps from ``first_step``.

    sources (12, C, S, L), profile knots (C, S, L, P), absences (S, L), path (6, L), load_cv (S, L), noise (K, 3, S, L)
    of unit variance (access, CPU, load), period (L,). The on/off gate is integrated over the period exactly.
    """
    steps, _, num_slices, lanes = block.shape
    num_sources, knots = sources.shape[1], profile_time_s.shape[3]
    for chunk in prange((lanes + LANE_CHUNK - 1) // LANE_CHUNK):
        stop = min((chunk + 1) * LANE_CHUNK, lanes)
        for k in range(steps):
            for s in range(num_slices):
                for lane in range(chunk * LANE_CHUNK, stop):
                    dt = period[lane]
                    time_s = (first_step + k) * dt
                    present = time_s < absent_from_s[s, lane] or time_s >= absent_to_s[s, lane]
                    total = elastic = packets = bursts = all_flows = 0.0
                    for c in range(num_sources):
                        source = sources[:, c, s, lane]
                        if not present or time_s < source[9] or time_s >= source[10]:
                            continue
                        flows = min(source[1] + math.floor((time_s - source[9]) / source[3]), source[2])
                        rate = source[0] * flows
                        if source[7] < source[6]:
                            begin = time_s + source[8]
                            opened = open_time(begin + dt, source[6], source[7]) - open_time(
                                begin, source[6], source[7]
                            )
                            rate *= opened / dt
                        if knots > 1:
                            rate *= interpolate(time_s, profile_time_s[c, s, lane], profile_factor[c, s, lane])
                        total += rate
                        elastic += rate * source[11]
                        packets += rate / source[4]
                        bursts += rate * source[5]
                        all_flows += flows
                    packet_mbit = 8e-6 * (total / packets if packets > 0 else DEFAULT_PACKET_BYTES)
                    offered = total - elastic
                    cv = load_cv[s, lane]
                    if cv > 0:
                        offered *= math.exp(cv * noise[k, 2, s, lane] - 0.5 * cv * cv)
                    cv = path[1, lane]
                    capacity = path[0, lane] * math.exp(cv * noise[k, 0, s, lane] - 0.5 * cv * cv)
                    cost_us = path[3, lane] * math.exp(path[4, lane] * noise[k, 1, s, lane])
                    waiting_ms = path[2, lane] * path[0, lane] / capacity if offered > capacity else 0.0
                    block[k, ARRIVE_MBIT, s, lane] = min(offered, capacity) * dt
                    block[k, ELASTIC_MBPS, s, lane] = min(elastic, max(capacity - offered, 0.0))
                    block[k, CPU_S_PER_MBIT, s, lane] = 1e-6 * cost_us / packet_mbit
                    block[k, RX_CPU_S_PER_MBIT, s, lane] = 1e-6 * path[5, lane] / packet_mbit
                    block[k, BURST_US, s, lane] = 1e6 * bursts / max(total, TINY)
                    block[k, FLOWS, s, lane] = max(all_flows, 1.0)
                    block[k, PACKET_MBIT, s, lane] = packet_mbit
                    block[k, ACCESS_DELAY_MS, s, lane] = waiting_ms
                    block[k, ACTIVE, s, lane] = present


arrivals_serial = njit(cache=True, error_model="numpy")(_arrivals)
arrivals_parallel = njit(cache=True, error_model="numpy", parallel=True)(_arrivals)
