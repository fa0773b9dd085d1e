"""The arithmetic of the rules `slicepilot.agents.heuristics.greedy` and `queue_greedy`, lane by lane.

A rule decides in every tick of a control loop, within a part of its 100 us, and in training for thousands of lanes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.agents.bounds import FILL_ROUNDS
from slicepilot.env.arrays import BoolArray, FloatArray
from slicepilot.env.compiled import kernel
from slicepilot.env.knobs import CPU_LIMIT, EGRESS, NICE
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS

ZERO, ONE, TINY, INFINITY = np.float32(0.0), np.float32(1.0), np.float32(1e-3), np.float32(np.inf)
MCPU = np.float32(1e3)
# A slice that carries less says little of what a Mbit costs it.
LEAST_CARRIED_MBPS = np.float32(0.1)
# Of a capacity, what goes at most to the least that slices are to have; promises are admitted from the rest.
LEAST_OF_ALL = np.float32(0.5)
UPLINK_FULL = np.float32(0.995)
MOST_BURST = np.float32(100.0)
LEAST_LIMIT_MCPU = np.float32(100.0)
LEAST_COST = np.float32(1e-3)
# A promise out of reach comes after all the others.
LAST = np.float32(1e-6)
OFFERED, CARRIED, CPU_USE, THROTTLED = (
    SLICE_FIELDS.index(name) for name in ("offered_mbps", "carried_mbps", "cpu_use_mcpu", "throttled_ratio")
)
IDLE, UPLINK_USE = (NODE_FIELDS.index(name) for name in ("cpu_idle_ratio", "uplink_use_ratio"))
NUM_SUMS = 2  # offered and carried rates
MOST_MEASURED = np.float32(1e9)


Records = npt.NDArray[Any]
SETTINGS = np.dtype(
    [
        (name, "f4")
        for name in (
            *("margin", "dead_band", "idle_ratio", "drain", "least_share", "uplink_busy", "spare_cpu"),
            *("least_margin", "loyalty", "committed_margin", "reach", "headroom", "peak_periods"),
            *("relief", "burst_periods", "queues"),
        )
    ]
)
"""Settings of `slicepilot.agents.heuristics.queue_greedy.QueueGreedyConfig`; ``queues`` is 1 if the rule uses queues.

A record, (1,), since numba takes 3 us to unpack as long a tuple."""

# Of a slice on a lane. First what is fixed for a run, then what is measured, then what the last decision was.
SLICE = np.dtype(
    [
        *((name, "f4") for name in ("weight", "committed_mbps", "bound_us", "least_mbps", "kept_nice", "order_factor")),
        *((name, "f4") for name in ("room_s", "buffer_mbit", "least_shaped_mbps", "lowest_mcpu", "highest_mcpu")),
        ("tight", "?"),
        *((name, "f4") for name in ("taken_mcpu", "carried_mbps", "cost", "offered_mbps", "forward")),
        *((name, "f4") for name in ("most_mcpu", "peak_mcpu", "burst", "owed_mbps", "threads")),
        *((name, "?") for name in ("valid", "was_kept")),
        *((name, "f4") for name in ("need_cpu_mbps", "need_uplink_mbps", "share_mcpu", "share_mbps")),
        *((name, "f4") for name in ("limit_mcpu", "nice", "egress_mbps", "held_mcpu", "held_mbps")),
        ("kept", "?"),
    ],
    align=True,
)
# Of the node of a lane, in the same order.
NODE = np.dtype(
    [
        *(
            (name, "f4")
            for name in ("rise", "fall", "shrinks", "wears_off", "given_out", "by_cpu_share", "spare_uplink")
        ),
        *((name, "f4") for name in ("cfs_period_s", "declared_mbps")),
        *((name, "?") for name in ("shapes", "even_cpu", "known")),
        *((name, "i8") for name in ("window", "ahead")),
        *((name, "f4") for name in ("nice_rest", "idle", "capacity_mcpu", "uplink_mbps", "full")),
    ],
    align=True,
)


@kernel
def _towards(new: np.float32, old: np.float32, weight: np.float32) -> np.float32:
    """Old moved by a weight (0..1) towards new; neither is subtracted, so that a huge value leaves nothing behind."""
    return weight * new + (ONE - weight) * old


@kernel
def measured(value: np.float32) -> np.float32:
    """A figure that averages can take in: what is no number would stay in them for ever."""
    return min(value, MOST_MEASURED) if value > ZERO else ZERO


@kernel
def measure(
    slices: FloatArray,
    node: FloatArray,
    valid: BoolArray,
    threads: FloatArray,
    logical_cpus: FloatArray,
    settings: Records,
    state: Records,
    nodes: Records,
    past: FloatArray,
    sums: npt.NDArray[np.float64],
    seen: int,
) -> None:
    """Averages of rates and costs, quick to rise and slow to fall; what the slices can have of CPUs and uplink.

    Args:
        slices, node, valid: telemetry of the period, (F, S, L), (N, L) and (S, L).
        threads, logical_cpus: of the run's context, (S, L) and (L,).
        settings: a record, (1,).
        state, nodes: records, (S, L) and (L,), which are updated.
        past, sums: rates of earlier periods and their sums, (P, 2, S, L) and (2, S, L), which are updated.
        seen: periods before this.
    """
    num_slices, lanes = valid.shape
    size, cfg = len(past), settings[0]
    for lane in range(lanes):
        at = nodes[lane]
        cpus = logical_cpus[lane]
        use, idle = measured(node[UPLINK_USE, lane]), measured(node[IDLE, lane])
        full = use > UPLINK_FULL
        used, carried_all = ZERO, ZERO
        window = at.window - at.ahead
        leaves, enters = (seen - window) % size, seen % size
        counted = np.float32(min(seen + 1, window) + at.ahead)
        for s in range(num_slices):
            item = state[s, lane]
            present = valid[s, lane]
            offered, carried = measured(slices[OFFERED, s, lane]), measured(slices[CARRIED, s, lane])
            cpu = measured(slices[CPU_USE, s, lane])
            item.valid, item.was_kept = present, item.kept
            # A limit above a UPF's group may have changed, or CPUs may have been taken away.
            item.threads = threads[s, lane]
            item.most_mcpu = min(max(MCPU * min(item.threads, cpus), item.lowest_mcpu), item.highest_mcpu)
            item.forward = max((ONE if item.kept else item.forward) - at.wears_off, ZERO)
            # What is dropped behind the UPF has cost CPU too, so that a Mbit that gets through seems dear.
            dropped = cpu >= item.cost * carried and (full or math.isfinite(item.held_mbps))
            # Means first, then their ratio: a period in which hardly a packet passed says nothing about its cost.
            pace = ONE if item.carried_mbps == ZERO else (ZERO if dropped else at.fall)
            if not (present and carried > LEAST_CARRIED_MBPS):
                pace = ZERO
            if pace > ZERO:
                item.taken_mcpu = _towards(cpu, item.taken_mcpu, pace)
                item.carried_mbps = _towards(carried, item.carried_mbps, pace)
            item.cost = item.taken_mcpu / max(item.carried_mbps, LEAST_CARRIED_MBPS)
            rises = at.rise if offered > item.offered_mbps else at.fall
            item.offered_mbps = _towards(offered, item.offered_mbps, ONE if item.offered_mbps == ZERO else rises)
            if present:
                used += cpu
                carried_all += carried
            if cfg.queues > ZERO:
                for k in range(NUM_SUMS):
                    rate = carried if k else offered
                    if window > 0:
                        gone = past[leaves, k, s, lane] if seen >= window else ZERO
                        sums[k, s, lane] += np.float64(rate) - np.float64(gone)
                    past[enters, k, s, lane] = rate
                # What the slice has to carry from now on for the window that is then full to keep the promise.
                comes = sums[0, s, lane] + at.ahead * item.offered_mbps
                owed = min(comes, np.float64(counted * item.committed_mbps))
                item.owed_mbps = np.float32((owed - sums[1, s, lane]) / at.ahead)
                takes = item.offered_mbps * item.cost * cfg.margin if present else ZERO
                kept = item.peak_mcpu + (takes - item.peak_mcpu) / cfg.peak_periods
                item.peak_mcpu = min(max(takes, kept), item.most_mcpu)
                burst = item.burst + (ONE - item.burst) / cfg.burst_periods
                item.burst = min(burst * (ONE + cfg.relief * measured(slices[THROTTLED, s, lane])), MOST_BURST)
        whole = MCPU * cpus
        at.idle = _towards(idle, at.idle, at.fall)
        usable = max(used + idle * whole, cfg.least_share * whole)
        # Where limits hold, others take what slices would have had: that says little of what there is.
        pace = at.fall if usable > at.capacity_mcpu else at.shrinks
        at.capacity_mcpu = _towards(usable, at.capacity_mcpu, pace)
        # Its rate is known while it is busy: what is carried over how busy that makes it.
        rate = carried_all / max(use, cfg.uplink_busy) if use > cfg.uplink_busy else at.declared_mbps
        falls = ONE if full else at.rise
        at.uplink_mbps = _towards(rate, at.uplink_mbps, falls if rate < at.uplink_mbps else at.fall)
        # A queue before the link goes on delaying all slices until less arrives than the link carries.
        at.full = ONE if full else (ONE - at.fall) * at.full


@kernel
def allocate(
    need: FloatArray,
    demand: FloatArray,
    value: FloatArray,
    capacity: np.float32,
    claim: FloatArray,
    spare: np.float32,
    least: FloatArray,
    admitted: BoolArray,
    given: FloatArray,
) -> None:
    """Admit needs in the order of value per need while they fit, then fill demands by claim with a share of the rest.

    Args:
        need, demand, value, claim: (S,); a need is at most the demand.
        capacity: of the node.
        spare: that share.
        least: what each slice gets first, (S,), at most the demand; scaled down to `LEAST_OF_ALL` of the capacity.
        admitted, given: filled in, (S,): which needs were admitted, and what each slice gets.
    """
    count = len(need)
    order = np.empty(count, np.int64)
    rank = np.empty(count, np.float32)
    first = ZERO
    for s in range(count):
        first += least[s]
        rank[s] = value[s] / max(need[s], TINY)
        k = s
        while k > 0 and rank[order[k - 1]] < rank[s]:
            order[k] = order[k - 1]
            k -= 1
        order[k] = s
    factor = min(ONE, LEAST_OF_ALL * capacity / max(first, TINY))
    left = capacity
    for s in range(count):
        given[s] = least[s] * factor
        left -= given[s]
    for k in range(count):
        s = order[k]
        more = max(need[s] - given[s], ZERO)
        admitted[s] = more <= left
        if admitted[s]:
            left -= more
            given[s] += more
    # The rest is shared by claim, up to the demands: a weighted max-min share.
    room = capacity - (ONE - spare) * max(left, ZERO)
    for _ in range(FILL_ROUNDS):
        taken, takers = ZERO, ZERO
        for s in range(count):
            taken += given[s]
            if given[s] < demand[s]:
                takers += claim[s]
        level = (room - taken) / max(takers, TINY)
        for s in range(count):
            given[s] = min(given[s] + (claim[s] * level if given[s] < demand[s] else ZERO), demand[s])


@kernel
def grant(
    bid: FloatArray,
    need_factor: FloatArray,
    settings: Records,
    state: Records,
    nodes: Records,
) -> None:
    """An allocation of the uplink, and of the CPU to what passes that; fills in the decision of the records.

    Args:
        bid, need_factor: (S, L), multiply each slice's position in the order of weight per need, and its need.
        settings: a record, (1,).
        state, nodes: records, (S, L) and (L,).
    """
    num_slices, lanes = state.shape
    cfg = settings[0]
    numbers, marks = np.empty((6, num_slices), np.float32), np.empty((3, num_slices), np.bool_)
    need, demand, value, least, claim, given = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]
    passes, admitted, cut_by_cpu = marks[0], marks[1], marks[2]
    for lane in range(lanes):
        at = nodes[lane]
        for s in range(num_slices):
            item = state[s, lane]
            offered = item.offered_mbps if item.valid else ZERO
            cpu, uplink, order, cut = _needs(item, at, offered, cfg)
            item.need_cpu_mbps, item.need_uplink_mbps = cpu * need_factor[s, lane], uplink * need_factor[s, lane]
            cut_by_cpu[s] = cut
            claim[s] = bid[s, lane] * item.weight
            value[s] = claim[s] * order * (cfg.loyalty if item.was_kept else ONE)
            least[s] = min(offered, cfg.least_margin * item.least_mbps)
            need[s], demand[s] = min(item.need_uplink_mbps, offered), offered
        uplink = at.given_out * (ONE - cfg.drain * at.full) * at.uplink_mbps
        allocate(need, demand, value, uplink, claim, at.spare_uplink, least, passes, given)
        for s in range(num_slices):
            item = state[s, lane]
            offered = item.offered_mbps if item.valid else ZERO
            item.share_mbps = given[s]
            # A UPF that is short of CPU limits its slice's use of the uplink, too. With a shaper behind it, it must
            # hand over less than the shaper lets through: otherwise packets would wait in two queues.
            by_cpu = cut_by_cpu[s] and given[s] < offered
            wanted = given[s] * at.by_cpu_share if by_cpu else offered
            # What is to stay off the uplink for want of CPU gets no margin.
            exact = item.cost * (ONE if by_cpu and (at.shapes or not passes[s]) else cfg.margin)
            need[s], demand[s] = min(item.need_cpu_mbps, wanted) * exact, wanted * exact
            least[s] = min(least[s], wanted) * exact
        allocate(need, demand, value, at.capacity_mcpu, claim, cfg.spare_cpu, least, admitted, given)
        limits = at.idle < cfg.idle_ratio
        for s in range(num_slices):
            item = state[s, lane]
            offered = item.offered_mbps if item.valid else ZERO
            full = offered * (item.cost * cfg.margin)
            item.share_mcpu = min(given[s], item.most_mcpu)
            item.limit_mcpu = item.share_mcpu
            if given[s] >= full:
                item.limit_mcpu = INFINITY
                if cfg.queues > ZERO:
                    enough = cfg.headroom * item.peak_mcpu * item.burst
                    item.limit_mcpu = max(enough, LEAST_LIMIT_MCPU) if enough < item.most_mcpu else INFINITY
            limits |= item.limit_mcpu < full
            item.kept = admitted[s] and passes[s]
            item.egress_mbps = INFINITY if item.share_mbps >= offered or not at.shapes else item.share_mbps
        for s in range(num_slices):
            item = state[s, lane]
            # Forward at once, back only after a while, so that weights do not change all the time.
            ahead = item.kept or item.forward > ZERO
            item.nice = ZERO if not limits else (item.kept_nice if ahead else at.nice_rest)


@kernel
def _needs(item: Any, at: Any, offered: np.float32, cfg: Any) -> tuple[Any, Any, Any, Any]:
    """Mbit/s through UPF and shaper that keep a promise, a factor of its rank, whether it is cut before the UPF."""
    if cfg.queues == ZERO or not at.known:
        promised = offered if item.tight else min(offered, item.committed_mbps)
        return promised, promised, ONE, not at.shapes
    # At rate r a full buffer takes buffer / r, and a quota that is used up T (1 - r cost / threads): with both
    # equal to the room that there is, a quadratic equation for r.
    per_rate = np.float64(at.cfs_period_s) * max(item.cost, LEAST_COST) / (MCPU * item.threads)
    spare = np.float64(item.room_s - at.cfs_period_s)  # nearly cancels below, where a Mbit costs little
    root = math.sqrt(spare * spare + 4.0 * per_rate * item.buffer_mbit)
    least = np.float32((root - spare) / (2.0 * per_rate))
    committed = cfg.committed_margin * max(item.committed_mbps, item.owed_mbps)
    cpu = min(offered, max(committed, least))
    shaped = item.least_shaped_mbps if at.shapes else INFINITY
    cut_by_cpu = least <= shaped and (at.even_cpu or not at.shapes)
    uplink = min(offered, max(committed, least if cut_by_cpu else shaped))
    within = cpu * item.cost <= cfg.reach * item.most_mcpu
    return cpu, uplink, item.order_factor * (ONE if within else LAST), cut_by_cpu


@kernel
def settle(values: FloatArray, settings: Records, state: Records) -> None:
    """Limits and rates of knobs (3, S, L) that move little stay where they were: each write of a quota refills it."""
    _, num_slices, lanes = values.shape
    dead_band = settings[0].dead_band
    for s in range(num_slices):
        for lane in range(lanes):
            item = state[s, lane]
            item.held_mcpu = settled(values[CPU_LIMIT, s, lane], item.held_mcpu, dead_band)
            item.held_mbps = settled(values[EGRESS, s, lane], item.held_mbps, dead_band)
            values[CPU_LIMIT, s, lane], values[EGRESS, s, lane] = item.held_mcpu, item.held_mbps


@kernel
def settled(new: np.float32, held: np.float32, dead_band: np.float32) -> np.float32:
    """The held value, unless the new value differs by more than a share of it."""
    return held if math.isfinite(held) and abs(new - held) <= dead_band * held else new


@kernel
def granted(state: Records, values: FloatArray) -> None:
    """Fill in the last decision as knobs (3, S, L)."""
    num_slices, lanes = state.shape
    for s in range(num_slices):
        for lane in range(lanes):
            item = state[s, lane]
            values[CPU_LIMIT, s, lane], values[EGRESS, s, lane] = item.limit_mcpu, item.egress_mbps
            values[NICE, s, lane] = item.nice


@kernel
def decide(
    ones: FloatArray, bounds: FloatArray, settings: Records, state: Records, nodes: Records, values: FloatArray
) -> None:
    """Knobs (3, S, L) inside bounds (3, 2, S) for what was measured last; ``ones`` is filled with ones, (S, L)."""
    grant(ones, ones, settings, state, nodes)
    granted(state, values)
    num_slices, lanes = state.shape
    settle(values, settings, state)
    for knob in range(len(values)):
        for s in range(num_slices):
            for lane in range(lanes):
                value = values[knob, s, lane]
                if math.isfinite(value):
                    values[knob, s, lane] = min(max(value, bounds[knob, 0, s]), bounds[knob, 1, s])
