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

from slicepilot.env.compiled import kernel
from slicepilot.env.knobs import CPU_LIMIT, EGRESS, NICE

from .cpu import (
    BEST_EFFORT_SHARES,
    ONE,
    SHARES_PER_MCPU,
    TINY,
    ZERO,
    cfs_available,
    cfs_budget_left,
    group_weight,
    sent_ratio,
    thread_speed,
    water_fill,
)
from .hardware import UNLIMITED
from .uplink_classes import share_by_class

# Exogenous fields per slice, axis 1 of a block (K, E, S, L), and per node, axis 1 of (K, EN, L).
ARRIVE_MBIT, ELASTIC_MBPS, CPU_S_PER_MBIT, RX_CPU_S_PER_MBIT, BURST_US = range(5)
FLOWS, PACKET_MBIT, ACCESS_DELAY_MS, ACTIVE, PLACEMENT = range(5, 10)
NUM_SLICE_EXOGENOUS = 10
UPLINK_MBPS, CPU_FACTOR = range(2)
NUM_NODE_EXOGENOUS = 2

# What is fixed of each slice's pod, axis 0 of (2, S, L): CPUs that its UPF can use at once, and its CPU request.
THREADS, REQUEST_MCPU = range(2)

# State fields, axis 0 of (9, S, L). The last three are of the last period: what left the node, what the UPF served, and
# what softirqs were charged with sending.
N3_MBIT, PACER_LEAD_S, PACER_MBIT, UPLINK_MBIT, TCP_MBPS, CFS_BUDGET_S, TX_MBPS, SERVED_MBPS, CHARGED_MBPS = range(9)
NUM_STATE = 9

# Where packets are dropped, axis 0 of (3, S, L).
DROP_N3, DROP_PACER, DROP_UPLINK = range(3)
NUM_DROPS = 3

HALF = np.float32(0.5)
MILLI, MICRO, MILLE, MILLION = np.float32(1e-3), np.float32(1e-6), np.float32(1e3), np.float32(1e6)
MBIT_PER_BYTE = np.float32(8e-6)
MIN_CAPACITY_CPUS = np.float32(0.05)
# A CFS period whose mean demand lies within 1/8 of the quota is throttled or not by chance.
THROTTLE_SLOPE = np.float32(4.0)
# Waits in a run queue are about exponential: the 99th percentile is ln(100) times the mean.
EXPONENTIAL_P99 = np.float32(4.605)
MAX_WAIT_SLICES = np.float32(100.0)
# Of how many CPUs others keep busy; and of the logistic function next to the normal distribution.
LEAST_VARIANCE, LOGISTIC, QUARTER = np.float32(0.01), np.float32(1.7), np.float32(0.25)
TCP_ROUND_TRIP_S = np.float32(0.2)
TCP_LOSS_SEEN = np.float32(0.01)
TCP_BACKED_OFF, TCP_GROWN, TCP_STEP_MBPS = np.float32(0.9), np.float32(1.3), np.float32(0.5)
DEFAULT_PACKET_BYTES = np.float32(1470.0)
# Lanes whose working tables fit the first-level cache.
LANE_CHUNK = 64

# Rows of the step's working table (64, LANE_CHUNK). Fixed for a run, in the order of `hardware.KERNEL_ROWS`:
LOGICAL, CORES, SMT_YIELD, TX_COST_US, SYSTEM, WAKE_RATIO, CFS_S, SLICE_US, WAKE_US = range(9)
EDGE, EDGE_REQUEST, BUFFER_PACKETS, HORIZON_S, BURST_S, PACKETS_PER_FLOW = range(9, 15)
QUEUE_PACKETS, UPLINK_BUFFER_S = range(15, 17)
# Of the node in this period; the first six are sums over slices.
KERNEL, WANTED, USED, SENT, WAITING, ELASTIC = range(17, 23)
DT, PER_S, UPLINK, FACTOR, SPEED, CAPACITY, SQUEEZE, CROWD, HEAVY, OPEN, SPREAD = range(23, 34)
THROUGH, KEEP, UPLINK_P50, UPLINK_P99 = range(34, 38)
# Of one slice.
ARRIVED, QUOTA, GOT, WAIT, THROTTLED, P50, P99, PER_CPU, RATE, SERVED = range(38, 48)
N3, LOST_N3, LEAD, STORED, OUT, LOST_PACER = range(48, 54)
STAY, LOST_UPLINK, CARRIED, SHOWN, LOSS = range(54, 59)
# CPUs of the node that softirqs need to send what the UPFs serve in this period: expected (SENDING), computed (SENDS)
# and the first over the second, at most 1 (EXPECTED); and CPUs that threads have (SHARED).
SENDING, SENDS, EXPECTED, SHARED = range(59, 63)
# Of one slice: what softirqs are charged with sending.
CHARGED = 63
NUM_WORKING = 64
# Largest difference between the expected and the computed sending, as a share of all CPUs, up to which shares stay.
SENDING_TOLERANCE = np.float32(0.02)


@kernel
def advance(
    steps: np.ndarray,
    k: int,
    slice_block: np.ndarray,
    node_block: np.ndarray,
    hardware: np.ndarray,
    classes: np.ndarray,
    period: np.ndarray,
    pods: np.ndarray,
    knobs: np.ndarray,
    nice_ranks_groups: bool,
    state: np.ndarray,
    drops: np.ndarray,
    telemetry: np.ndarray,
    node: np.ndarray,
    valid: np.ndarray,
) -> None:
    """Play control period number ``steps`` (L,) of each lane with row ``k`` of the exogenous block.

    Updates the last five arrays.

    slice_block (K, 10, S, L), node_block (K, 2, L), hardware (17, L), classes (3, S, L) of the uplink, or (3, 0, L)
    where it is one FIFO, period (L,) in s; pods (2, S, L), knobs
    (3, S, L); state (9, S, L), drops (3, S, L) in Mbit of this period, telemetry (F, S, L), node (N, L), valid
    (S, L).

    A loop over lanes has to become SIMD code: write it in float32, with selections (``a if c else b``, ``min``)
    instead of branches. Read at most eight rows and write the results to rows of the working table ``v``; store these
    in a loop of their own, at most three at a time, each in a different array. Otherwise LLVM does not vectorise: it
    gives up where it needs more than eight checks that a written row does not overlap the others, or where two rows of
    an array are written whose width is not a constant. The loops of the nice table, of short control periods and of TCP
    are exempt, since they are skipped where no lane needs them.
    """
    _, num_slices, lanes = pods.shape
    for first in range(0, lanes, LANE_CHUNK):
        stop = min(first + LANE_CHUNK, lanes)
        count = stop - first
        exo = slice_block[k]
        v = np.empty((NUM_WORKING, LANE_CHUNK), np.float32)
        work = np.empty((num_slices, LANE_CHUNK), np.float32)
        want, most, sends = np.empty_like(work), np.empty_like(work), np.empty_like(work)
        # One group more than there are slices: the edge application's.
        run = np.empty((num_slices + 1, LANE_CHUNK), np.float32)
        weight, share = np.empty_like(run), np.empty_like(run)
        for h in range(UPLINK_BUFFER_S + 1):
            for lane in range(first, stop):
                v[h, lane - first] = hardware[h, lane]
        for lane in range(first, stop):
            i = lane - first
            v[DT, i], v[PER_S, i] = period[lane], ONE / period[lane]
            v[UPLINK, i], v[FACTOR, i] = node_block[k, UPLINK_MBPS, lane], node_block[k, CPU_FACTOR, lane]
            v[USED, i] = v[SENT, i] = v[WAITING, i] = v[ELASTIC, i] = ZERO
            v[KERNEL, i], v[SENDING, i] = v[SYSTEM, i], ZERO
            v[WANTED, i] = run[num_slices, i] = v[EDGE, i]
            weight[num_slices, i] = max(v[EDGE_REQUEST, i] * SHARES_PER_MCPU, BEST_EFFORT_SHARES)
        for s in range(num_slices):
            arrive(
                s,
                first,
                stop,
                exo,
                pods,
                knobs,
                nice_ranks_groups,
                state,
                telemetry,
                v,
                work,
                want,
                most,
                sends,
                weight,
            )
        any_below_cfs = share_cpus(steps, first, stop, pods, knobs, state, v, want, most, sends, run, weight, share)
        for s in range(num_slices):
            delay_by_cpu(s, first, stop, exo, pods, knobs, v, want, run, weight, share)
            serve_n3_buffer(steps, s, first, stop, any_below_cfs, exo, pods, state, v, work, want)
            pace(s, first, stop, exo, knobs, state, v)
            store(s, first, stop, exo, state, drops, telemetry, v, work, want)
        share_uplink(first, stop, node, v)
        any_elastic = False
        for i in range(count):
            any_elastic |= v[ELASTIC, i] > ZERO
        has_classes = classes.shape[1] > 0
        shares = np.empty((4, classes.shape[1], LANE_CHUNK), np.float32)
        if has_classes:
            share_by_class(
                first,
                stop,
                classes,
                exo[PACKET_MBIT],
                state[UPLINK_MBIT],
                work,
                v[DT],
                v[PER_S],
                v[UPLINK],
                v[UPLINK_BUFFER_S],
                shares,
            )
        for s in range(num_slices):
            if has_classes:
                for row in range(4):
                    for i in range(count):
                        v[THROUGH + row, i] = shares[row, s, i]
            send(s, first, stop, exo, state, drops, telemetry, valid, v, work, want)
            if any_elastic:
                adapt_tcp(s, first, stop, exo, state, v)


@kernel(inline="always")
def arrive(
    s: int,
    first: int,
    stop: int,
    exo: np.ndarray,
    pods: np.ndarray,
    knobs: np.ndarray,
    nice_ranks_groups: bool,
    state: np.ndarray,
    telemetry: np.ndarray,
    v: np.ndarray,
    work: np.ndarray,
    want: np.ndarray,
    most: np.ndarray,
    sends: np.ndarray,
    weight: np.ndarray,
) -> None:
    """Arrivals of a slice, what it wants of the CPUs, and softirq work, which precedes all threads."""
    for lane in range(first, stop):
        i = lane - first
        elastic = min(state[TCP_MBPS, s, lane], exo[ELASTIC_MBPS, s, lane])
        arrived = exo[ARRIVE_MBIT, s, lane] + elastic * v[DT, i]
        v[ELASTIC, i] += exo[ELASTIC_MBPS, s, lane]
        v[ARRIVED, i] = arrived
        v[KERNEL, i] += exo[RX_CPU_S_PER_MBIT, s, lane] * arrived * v[PER_S, i]
        # What was sent and not expected.
        owed = max(state[TX_MBPS, s, lane] - state[CHARGED_MBPS, s, lane], ZERO)
        v[KERNEL, i] += owed * MICRO * v[TX_COST_US, i] / exo[PACKET_MBIT, s, lane]
    for lane in range(first, stop):
        i = lane - first
        work[s, i] = state[N3_MBIT, s, lane] + v[ARRIVED, i]
        # A thread that keeps up sleeps and wakes for every few packets, and each wake-up costs CPU time. An overloaded
        # thread does not sleep.
        busy = work[s, i] * exo[CPU_S_PER_MBIT, s, lane] * v[PER_S, i]
        want[s, i] = busy * (ONE + v[WAKE_RATIO, i] * max(ONE - busy / pods[THREADS, s, lane], ZERO))
    for lane in range(first, stop):
        i = lane - first
        most[s, i] = min(pods[THREADS, s, lane], knobs[CPU_LIMIT, s, lane] * MILLI, UNLIMITED)
        v[WANTED, i] += min(want[s, i], most[s, i])
    for lane in range(first, stop):
        i = lane - first
        # CPU time that sending takes per CPU time of the UPF's.
        packets = work[s, i] * v[PER_S, i] / exo[PACKET_MBIT, s, lane] / max(want[s, i], TINY)
        leaves = sent_ratio(state[TX_MBPS, s, lane], state[SERVED_MBPS, s, lane])
        sends[s, i] = MICRO * v[TX_COST_US, i] * packets * leaves
        v[SENDING, i] += min(want[s, i], most[s, i]) * sends[s, i]
    for lane in range(first, stop):
        i = lane - first
        offered = v[ARRIVED, i] * v[PER_S, i]
        telemetry[0, s, lane] = offered if exo[ACTIVE, s, lane] > ZERO else ZERO
    for lane in range(first, stop):
        weight[s, lane - first] = group_weight(pods[REQUEST_MCPU, s, lane], knobs[NICE, s, lane], nice_ranks_groups)
    for lane in range(first, stop):
        weight[s, lane - first] *= exo[PLACEMENT, s, lane]


@kernel(inline="always")
def share_cpus(
    steps: np.ndarray,
    first: int,
    stop: int,
    pods: np.ndarray,
    knobs: np.ndarray,
    state: np.ndarray,
    v: np.ndarray,
    want: np.ndarray,
    most: np.ndarray,
    sends: np.ndarray,
    run: np.ndarray,
    weight: np.ndarray,
    share: np.ndarray,
) -> bool:
    """CPU time: SMT slows threads down when siblings are busy; groups share what softirqs leave.

    Returns whether a lane has a control period shorter than the CFS period.
    """
    num_slices, count = len(want), stop - first
    for i in range(count):
        busy = v[WANTED, i] + v[KERNEL, i] + v[SENDING, i]
        factor = max(v[FACTOR, i], TINY)
        v[SPEED, i] = thread_speed(busy, v[CORES, i], v[LOGICAL, i], v[SMT_YIELD, i]) * factor
        v[KERNEL, i] /= v[SPEED, i]
        # What is served is sent: where the UPFs do not get all that they want, less is to be sent as well.
        left = max(v[LOGICAL, i] - v[KERNEL, i], MIN_CAPACITY_CPUS)
        wanted = (v[WANTED, i] - v[EDGE, i] + v[SENDING, i]) / v[SPEED, i]
        v[SENDING, i] *= min(ONE, left / max(wanted, TINY)) / v[SPEED, i]
    any_below_cfs = False
    for i in range(count):
        any_below_cfs |= v[DT, i] < v[CFS_S, i]
    for s in range(num_slices):
        for i in range(count):
            want[s, i] /= v[SPEED, i]
        if any_below_cfs:
            # In a control period shorter than the CFS period a group has what is left of its budget, which may be
            # more or less than its quota.
            for lane in range(first, stop):
                i = lane - first
                dt, cfs_s = v[DT, i], v[CFS_S, i]
                if dt < cfs_s:
                    quota_s = min(knobs[CPU_LIMIT, s, lane] * MILLI, UNLIMITED) * cfs_s
                    budget = min(state[CFS_BUDGET_S, s, lane], quota_s)
                    available = cfs_available(steps[lane] * dt, dt, cfs_s, quota_s, budget, pods[THREADS, s, lane])
                    most[s, i] = available / dt
    for attempt in range(3):
        for i in range(count):
            v[CAPACITY, i] = max(v[LOGICAL, i] - v[KERNEL, i] - v[SENDING, i], MIN_CAPACITY_CPUS)
            # A thread does not run while its CPU serves softirqs, which come to all CPUs alike.
            v[OPEN, i] = v[CAPACITY, i] / v[LOGICAL, i]
            v[WANTED, i], v[HEAVY, i], v[SPREAD, i] = v[EDGE, i], v[EDGE, i] * weight[num_slices, i], ZERO
            v[SENDS, i] = ZERO
        for s in range(num_slices):
            for lane in range(first, stop):
                i = lane - first
                run[s, i] = min(want[s, i], most[s, i], pods[THREADS, s, lane] * v[OPEN, i])
            for i in range(count):
                v[WANTED, i] += run[s, i]
                v[HEAVY, i] += run[s, i] * weight[s, i]
                busy = min(run[s, i], ONE)
                v[SPREAD, i] += busy * (ONE - busy)
        water_fill(v[CAPACITY, :count], run, weight, share)
        for i in range(count):
            v[SHARED, i] = share[num_slices, i]
        for s in range(num_slices):
            for i in range(count):
                v[SENDS, i] += share[s, i] * sends[s, i]
                v[SHARED, i] += share[s, i]
        differs = False
        for i in range(count):
            differs |= abs(v[SENDS, i] - v[SENDING, i]) > SENDING_TOLERANCE * v[LOGICAL, i]
        if attempt == 2 or not differs:
            break
        for i in range(count):
            left = max(v[LOGICAL, i] - v[KERNEL, i], MIN_CAPACITY_CPUS)
            ratio = v[SENDS, i] / max(v[SHARED, i], TINY)
            # A lane that is done stays as it is in the rounds that others need.
            done = abs(v[SENDS, i] - v[SENDING, i]) <= SENDING_TOLERANCE * v[LOGICAL, i]
            v[SENDING, i] = v[SENDING, i] if done else ratio * min(v[WANTED, i], left / (ONE + ratio))
    for i in range(count):
        # What was not expected is charged in the next period.
        v[EXPECTED, i] = min(ONE, v[SENDING, i] / max(v[SENDS, i], TINY))
        v[KERNEL, i] += min(v[SENDING, i], v[SENDS, i])
    for i in range(count):
        v[SQUEEZE, i] = min(ONE, v[CAPACITY, i] / max(v[WANTED, i], TINY))
        v[USED, i] = v[KERNEL, i] + share[num_slices, i]
        v[CROWD, i] = v[KERNEL, i] + v[WANTED, i] - (v[LOGICAL, i] - HALF)
    return any_below_cfs


@kernel(inline="always")
def delay_by_cpu(
    s: int,
    first: int,
    stop: int,
    exo: np.ndarray,
    pods: np.ndarray,
    knobs: np.ndarray,
    v: np.ndarray,
    want: np.ndarray,
    run: np.ndarray,
    weight: np.ndarray,
    share: np.ndarray,
) -> None:
    """What a slice got of the CPUs, and how long its packets waited for them."""
    for lane in range(first, stop):
        i = lane - first
        got = share[s, i]
        v[USED, i] += got
        quota = max(min(knobs[CPU_LIMIT, s, lane] * MILLI, UNLIMITED), TINY)
        throttled = min(max(THROTTLE_SLOPE * (want[s, i] / quota - ONE) + HALF, ZERO), ONE)
        waits = min(max(run[s, i] / max(got, TINY) - ONE, ZERO), MAX_WAIT_SLICES)
        # Whoever wakes while all CPUs are busy with others waits, however little it needs, the less the more
        # it weighs against them: its virtual deadline comes the sooner, and it may preempt (kernel, EEVDF).
        # How many CPUs others keep busy is about normal: each of them works for a share of the time, on its
        # own. Logistic's approximation of the normal distribution; its tail is what the 99th percentile sees.
        busy = min(run[s, i], ONE)
        spread = math.sqrt(max(v[SPREAD, i] - busy * (ONE - busy), LEAST_VARIANCE))
        crowded = LOGISTIC * (v[CROWD, i] - run[s, i]) / np.float32(spread)
        often = min(max(HALF + QUARTER * crowded, ZERO), ONE)
        tail = min(max(EXPONENTIAL_P99 + min(crowded, ZERO), ZERO), EXPONENTIAL_P99)
        rivals = (v[HEAVY, i] - run[s, i] * weight[s, i]) / max(v[WANTED, i] - run[s, i], TINY)
        wake_us = v[WAKE_US, i] * rivals / (rivals + weight[s, i])
        queued_us = v[SLICE_US, i] * waits if run[s, i] > ZERO else ZERO
        wake_us = wake_us if run[s, i] > ZERO else ZERO
        wait_us = queued_us + wake_us * often
        off = max(ONE - quota / pods[THREADS, s, lane], ZERO)
        off_us = MILLION * v[CFS_S, i] * off * throttled
        burst = exo[BURST_US, s, lane] * min(run[s, i], ONE)
        v[P50, i] = HALF * burst + wait_us + HALF * off * off_us
        v[P99, i] = burst + EXPONENTIAL_P99 * queued_us + tail * wake_us + off_us
        v[QUOTA, i], v[GOT, i], v[THROTTLED, i], v[WAIT, i] = quota, got, throttled, wait_us


@kernel(inline="always")
def serve_n3_buffer(
    steps: np.ndarray,
    s: int,
    first: int,
    stop: int,
    any_below_cfs: bool,
    exo: np.ndarray,
    pods: np.ndarray,
    state: np.ndarray,
    v: np.ndarray,
    work: np.ndarray,
    want: np.ndarray,
) -> None:
    """The N3 socket buffer, served at the CPU's rate."""
    for lane in range(first, stop):
        i = lane - first
        # What a CPU second serves, waking included.
        v[PER_CPU, i] = work[s, i] * v[PER_S, i] / max(want[s, i], TINY)
        v[PER_CPU, i] = v[PER_CPU, i] if want[s, i] > ZERO else v[SPEED, i] / exo[CPU_S_PER_MBIT, s, lane]
        v[RATE, i] = max(v[GOT, i] * v[PER_CPU, i], TINY)
        # Who gets all that is wanted leaves nothing behind, not even a rounding error.
        served = min(work[s, i], v[RATE, i] * v[DT, i])
        v[SERVED, i] = served if v[GOT, i] < want[s, i] else work[s, i]
    if any_below_cfs:
        for lane in range(first, stop):
            i = lane - first
            dt, cfs_s, quota = v[DT, i], v[CFS_S, i], v[QUOTA, i]
            if dt < cfs_s:
                quota_s = quota * cfs_s
                budget = min(state[CFS_BUDGET_S, s, lane], quota_s)
                state[CFS_BUDGET_S, s, lane] = cfs_budget_left(
                    steps[lane] * dt, dt, cfs_s, quota_s, budget, v[GOT, i] * dt
                )
                # What waits is served at the rate of the whole CFS period, not at that of a throttled moment.
                mean = min(quota, want[s, i], pods[THREADS, s, lane]) * v[SQUEEZE, i]
                v[RATE, i] = max(v[RATE, i], mean * v[PER_CPU, i])
    for lane in range(first, stop):
        i = lane - first
        before, rest = state[N3_MBIT, s, lane], work[s, i] - v[SERVED, i]
        after = min(rest, v[BUFFER_PACKETS, i] * exo[PACKET_MBIT, s, lane])
        v[N3, i], v[LOST_N3, i] = after, rest - after
        v[P50, i] += HALF * MILLION * (before + after) / v[RATE, i]
        v[P99, i] += MILLION * max(before, after) / v[RATE, i]


@kernel(inline="always")
def pace(
    s: int,
    first: int,
    stop: int,
    exo: np.ndarray,
    knobs: np.ndarray,
    state: np.ndarray,
    v: np.ndarray,
) -> None:
    """Egress pacer.

    Egress pacer: departures are scheduled at the configured rate; beyond the horizon packets are refused. The
    schedule advances for every admitted packet, also for those that the queue behind it drops because a flow
    may hold only so many packets there: with the schedule at its horizon T, n packets per flow let through
    n / T. That is why a rate below what the UPF delivers collapses instead of shaping (Linux sch_fq,
    flow_limit 100; Cilium bpf/lib/edt.h, drop horizon 2 s).
    """
    for lane in range(first, stop):
        i = lane - first
        egress = knobs[EGRESS, s, lane]
        egress = min(egress, UNLIMITED) if egress > ZERO else UNLIMITED
        lead = max(state[PACER_LEAD_S, s, lane] + v[SERVED, i] / egress - v[DT, i], -v[BURST_S, i])
        # A queue of so many packets is the longer the lower the rate.
        horizon = v[HORIZON_S, i] + v[QUEUE_PACKETS, i] * exo[PACKET_MBIT, s, lane] / egress
        refused = min(max(lead - horizon, ZERO) * egress, v[SERVED, i])
        lead = min(lead, horizon)
        ahead = max(lead, ZERO)
        room = v[PACKETS_PER_FLOW, i] * exo[FLOWS, s, lane] * exo[PACKET_MBIT, s, lane]
        available = state[PACER_MBIT, s, lane] + v[SERVED, i] - refused
        stored = min(ahead * egress, room, available)
        out = min(available - stored, room * v[DT, i] / max(ahead, TINY))
        v[LOST_PACER, i] = refused + (available - stored - out)
        v[LEAD, i], v[STORED, i], v[OUT, i] = lead, stored, out
        own_us = MILLION * (ahead + exo[CPU_S_PER_MBIT, s, lane] * exo[PACKET_MBIT, s, lane])
        v[P50, i] += own_us
        v[P99, i] += own_us


@kernel(inline="always")
def store(
    s: int,
    first: int,
    stop: int,
    exo: np.ndarray,
    state: np.ndarray,
    drops: np.ndarray,
    telemetry: np.ndarray,
    v: np.ndarray,
    work: np.ndarray,
    want: np.ndarray,
) -> None:
    """Telemetry of the slice up to the uplink; 0 for an absent slice."""
    for lane in range(first, stop):
        i = lane - first
        there = exo[ACTIVE, s, lane] > ZERO
        v[P50, i] = v[P50, i] if there else ZERO
        v[P99, i] = v[P99, i] if there else ZERO
        v[GOT, i] = MILLE * v[GOT, i] if there else ZERO
        v[THROTTLED, i] = v[THROTTLED, i] if there else ZERO
        v[WAIT, i] = v[WAIT, i] if there else ZERO
        v[SENT, i] += v[OUT, i]
        v[WAITING, i] += state[UPLINK_MBIT, s, lane]
    for lane in range(first, stop):
        i = lane - first
        state[N3_MBIT, s, lane] = v[N3, i]
        drops[DROP_N3, s, lane] = v[LOST_N3, i]
        telemetry[2, s, lane] = v[P50, i]
    for lane in range(first, stop):
        i = lane - first
        state[PACER_LEAD_S, s, lane] = v[LEAD, i]
        drops[DROP_PACER, s, lane] = v[LOST_PACER, i]
        telemetry[3, s, lane] = v[P99, i]
    for lane in range(first, stop):
        i = lane - first
        state[PACER_MBIT, s, lane] = v[STORED, i]
        work[s, i], want[s, i] = v[OUT, i], v[SERVED, i] * v[PER_S, i]
        telemetry[5, s, lane] = v[GOT, i]
    for lane in range(first, stop):
        telemetry[6, s, lane] = v[THROTTLED, lane - first]
    for lane in range(first, stop):
        telemetry[7, s, lane] = v[WAIT, lane - first]


@kernel(inline="always")
def share_uplink(
    first: int,
    stop: int,
    node: np.ndarray,
    v: np.ndarray,
) -> None:
    """The shared uplink: one FIFO for all slices; and the figures of the node."""
    count = stop - first
    for i in range(count):
        waiting, uplink = v[WAITING, i], v[UPLINK, i]
        backlog = waiting + v[SENT, i]
        v[THROUGH, i] = min(ONE, uplink * v[DT, i] / max(backlog, TINY))
        over = backlog * (ONE - v[THROUGH, i])
        v[KEEP, i] = min(ONE, v[UPLINK_BUFFER_S, i] * uplink / max(over, TINY))
        us_per_mbit = MILLION / max(uplink, TINY)
        v[UPLINK_P50, i] = HALF * (waiting + over * v[KEEP, i]) * us_per_mbit
        v[UPLINK_P99, i] = max(waiting, over * v[KEEP, i]) * us_per_mbit
        v[SENT, i] = backlog
    for lane in range(first, stop):
        i = lane - first
        node[0, lane] = max(ONE - v[USED, i] / v[LOGICAL, i], ZERO)
    for lane in range(first, stop):
        i = lane - first
        node[1, lane] = min(v[SENT, i] / max(v[UPLINK, i] * v[DT, i], TINY), ONE)


@kernel(inline="always")
def send(
    s: int,
    first: int,
    stop: int,
    exo: np.ndarray,
    state: np.ndarray,
    drops: np.ndarray,
    telemetry: np.ndarray,
    valid: np.ndarray,
    v: np.ndarray,
    work: np.ndarray,
    want: np.ndarray,
) -> None:
    """What of a slice leaves by the uplink, waits, or is lost."""
    for lane in range(first, stop):
        i = lane - first
        queued = state[UPLINK_MBIT, s, lane] + work[s, i]
        sent = queued * v[THROUGH, i]
        v[STAY, i] = (queued - sent) * v[KEEP, i]
        v[LOST_UPLINK, i] = queued - sent - v[STAY, i]
        v[CARRIED, i] = sent * v[PER_S, i]
        offered = telemetry[0, s, lane]
        v[LOSS, i] = max(ONE - v[CARRIED, i] / max(offered, TINY), ZERO) if offered > ZERO else ZERO
        there = exo[ACTIVE, s, lane] > ZERO
        v[SHOWN, i] = v[CARRIED, i] if there else ZERO
        v[P50, i] = telemetry[2, s, lane] + (v[UPLINK_P50, i] if there else ZERO)
        v[P99, i] = telemetry[3, s, lane] + (v[UPLINK_P99, i] if there else ZERO)
    for lane in range(first, stop):
        i = lane - first
        state[UPLINK_MBIT, s, lane] = v[STAY, i]
        drops[DROP_UPLINK, s, lane] = v[LOST_UPLINK, i]
        telemetry[1, s, lane] = v[SHOWN, i]
    for lane in range(first, stop):
        i = lane - first
        leaves = sent_ratio(state[TX_MBPS, s, lane], state[SERVED_MBPS, s, lane])
        v[CHARGED, i] = want[s, i] * leaves * v[EXPECTED, i]
    for lane in range(first, stop):
        state[SERVED_MBPS, s, lane] = want[s, lane - first]
    for lane in range(first, stop):
        state[CHARGED_MBPS, s, lane] = v[CHARGED, lane - first]
    for lane in range(first, stop):
        i = lane - first
        state[TX_MBPS, s, lane] = v[CARRIED, i]
        telemetry[2, s, lane] = v[P50, i]
        valid[s, lane] = exo[ACTIVE, s, lane] > ZERO
    for lane in range(first, stop):
        telemetry[3, s, lane] = v[P99, lane - first]
    for lane in range(first, stop):
        telemetry[4, s, lane] = v[LOSS, lane - first]


@kernel(inline="always")
def adapt_tcp(
    s: int,
    first: int,
    stop: int,
    exo: np.ndarray,
    state: np.ndarray,
    v: np.ndarray,
) -> None:
    """TCP-like sources: back off by what was lost, else probe upwards, within about a round trip."""
    for lane in range(first, stop):
        i = lane - first
        limit, tcp = exo[ELASTIC_MBPS, s, lane], state[TCP_MBPS, s, lane]
        if limit > ZERO:
            lossy = v[LOSS, i] > TCP_LOSS_SEEN
            goal = TCP_BACKED_OFF * v[CARRIED, i] if lossy else TCP_GROWN * tcp + TCP_STEP_MBPS
            tcp += (ONE - math.exp(-v[DT, i] / TCP_ROUND_TRIP_S)) * (goal - tcp)
            state[TCP_MBPS, s, lane] = min(max(tcp, ZERO), limit)
