"""The arithmetic of `slicepilot.agents.learned.guide`, lane by lane."""

from __future__ import annotations

import math

import numpy as np

from slicepilot.agents.heuristics.greedy_kernels import Records, grant, granted, measured, settle
from slicepilot.env.arrays import BoolArray, FloatArray
from slicepilot.env.compiled import kernel
from slicepilot.env.encoding import NONE_ABOVE
from slicepilot.env.encoding_kernels import decode, encode_knobs
from slicepilot.env.knobs import CPU_LIMIT, EGRESS, NICE, NUM_KNOBS
from slicepilot.env.promises import RATE_TOLERANCE
from slicepilot.env.telemetry import SLICE_FIELDS

RULE_FEATURES = ("rule_cpu_limit", "rule_nice", "rule_egress", "share_cpu", "share_egress")
MEASURED_FEATURES = (
    *("kept", "tight", "need_cpu", "offered_cpu", "peak_cpu", "need_uplink", "offered_uplink"),
    *("node_offered_cpu", "node_offered_uplink", "node_idle", "over_threads", "trend", "rate_kept", "delay_kept"),
    *("lateness", "lateness_average", "broken_average"),
)
"""What changes from period to period; what is fixed for a run follows."""
(KEPT, TIGHT, NEED_CPU, OFFERED_CPU, PEAK_CPU, NEED_UPLINK, OFFERED_UPLINK) = range(5, 12)
(NODE_CPU, NODE_UPLINK, NODE_IDLE, OVER_THREADS, TREND, RATE_KEPT, DELAY_KEPT, LATE, LATE_MEAN, BROKEN_MEAN) = range(
    12, 22
)
FIXED = len(RULE_FEATURES) + len(MEASURED_FEATURES)
OFFERED, CARRIED, P99 = (SLICE_FIELDS.index(name) for name in ("offered_mbps", "carried_mbps", "delay_p99_us"))

ZERO, HALF, ONE, TWO, MILLI = (np.float32(value) for value in (0.0, 0.5, 1.0, 2.0, 1e-3))
TINY = np.float32(1e-6)
MCPU = np.float32(1e3)
# Logarithms of ratios are shown over this, e to the power of which is about 400.
LOG_SCALE = np.float32(6.0)

CORRECTIONS = ("bid", "need", "cpu_limit", "nice", "egress")
"""Columns of a guided policy's action, each in [-1, 1], 0 = as the rule does."""
NUM_CORRECTIONS = len(CORRECTIONS)
# e to the power of these is the largest factor of a slice's rank in the order, and of its need.
BID_REACH, NEED_REACH = np.float32(3.0), np.float32(0.5)
# A slice that the rule leaves free stays free above the first departure; a limited slice is set free above the second.
FREE_ABOVE, LET_GO_ABOVE = np.float32(-0.3), np.float32(0.6)
# Departures to positions on the axes: a CPU limit and an egress rate move by up to a factor of some 1.8, nice by ten
# levels.
CPU_REACH, EGRESS_REACH, NICE_REACH = np.float32(0.3), np.float32(0.12), np.float32(0.5)
FREE_OFFSET = np.float32(0.6)  # where a free slice is first limited, over its share, in reaches


@kernel
def log_ratio(over: np.float32, under: np.float32) -> np.float32:
    """0 where both are the same, 1 at some 400 times, -1 at the inverse of that."""
    ratio = np.float32(math.log((over + TINY) / (under + TINY))) / LOG_SCALE
    return min(max(ratio, -ONE), ONE)


@kernel
def share(value: np.float32) -> np.float32:
    """A share of the node, up to twice all of it, in 0..1."""
    return min(max(value, -ONE), TWO) * HALF


@kernel
def _positions(state: Records, axes: FloatArray, rule: FloatArray, shares: FloatArray) -> None:
    """Positions (3, S, L) of the rule's decision, and of limits at what it gives each slice."""
    num_slices, lanes = state.shape
    values = np.empty((NUM_KNOBS, num_slices, lanes), np.float32)
    granted(state, values)
    encode_knobs(values, axes, rule)
    for s in range(num_slices):
        for lane in range(lanes):
            item = state[s, lane]
            values[CPU_LIMIT, s, lane], values[EGRESS, s, lane] = (
                max(item.share_mcpu, TINY),
                max(item.share_mbps, TINY),
            )
    encode_knobs(values, axes, shares)


@kernel
def look(
    slices: FloatArray,
    valid: BoolArray,
    bid: FloatArray,
    need: FloatArray,
    pace: FloatArray,
    axes: FloatArray,
    settings: Records,
    state: Records,
    nodes: Records,
    averages: FloatArray,
    fixed: FloatArray,
    first: int,
    table: FloatArray,
) -> None:
    """Let the rule decide on what it has measured and write the features into columns from ``first`` on.

    Args:
        slices, valid: telemetry, (F, S, L) and (S, L).
        bid, need: filled with ones, (S, L).
        pace: of averages, (L,).
        axes: of the knobs, see `slicepilot.env.encoding_kernels`.
        settings, state, nodes: of the rule.
        averages: of lateness and broken promises, (2, S, L), which are updated.
        fixed: features that are fixed for a run, (K, S, L).
        first: column.
        table: (L, S, D), filled in.
    """
    grant(bid, need, settings, state, nodes)
    num_slices, lanes = state.shape
    margin = settings[0].margin
    rule = np.empty((NUM_KNOBS, num_slices, lanes), np.float32)
    shares = np.empty_like(rule)
    _positions(state, axes, rule, shares)
    for lane in range(lanes):
        at = nodes[lane]
        over_capacity, over_uplink = ONE / at.capacity_mcpu, ONE / max(at.uplink_mbps, TINY)
        all_cpu, all_uplink = ZERO, ZERO
        for s in range(num_slices):
            item = state[s, lane]
            row = table[lane, s, first:]
            offered = item.offered_mbps if item.valid else ZERO
            cost = item.cost * margin
            offered_cpu, offered_uplink = offered * cost * over_capacity, offered * over_uplink
            if valid[s, lane]:
                all_cpu += offered_cpu
                all_uplink += offered_uplink
            for knob in range(NUM_KNOBS):
                row[knob] = rule[knob, s, lane]
            row[3], row[4] = shares[CPU_LIMIT, s, lane], shares[EGRESS, s, lane]
            row[KEPT], row[TIGHT] = ONE if item.kept else ZERO, ONE if item.tight else ZERO
            row[NEED_CPU], row[OFFERED_CPU] = share(item.need_cpu_mbps * cost * over_capacity), share(offered_cpu)
            row[PEAK_CPU] = share(item.peak_mcpu * over_capacity)
            row[NEED_UPLINK], row[OFFERED_UPLINK] = share(item.need_uplink_mbps * over_uplink), share(offered_uplink)
            row[NODE_IDLE] = min(at.idle, ONE)
            row[OVER_THREADS] = log_ratio(item.need_cpu_mbps * cost, MCPU * item.threads)
            newest, carried = measured(slices[OFFERED, s, lane]), measured(slices[CARRIED, s, lane])
            p99_us = measured(slices[P99, s, lane])
            row[TREND] = log_ratio(newest, offered)
            row[RATE_KEPT] = min((carried + TINY) / (RATE_TOLERANCE * min(newest, item.committed_mbps) + TINY), ONE)
            row[DELAY_KEPT] = min(item.bound_us / (p99_us + TINY), ONE)
            late = log_ratio(p99_us, item.bound_us)
            broken = ONE if min(row[RATE_KEPT], row[DELAY_KEPT]) < ONE else ZERO
            averages[0, s, lane] += pace[lane] * (late - averages[0, s, lane])
            averages[1, s, lane] += pace[lane] * (broken - averages[1, s, lane])
            row[LATE], row[LATE_MEAN], row[BROKEN_MEAN] = late, averages[0, s, lane], averages[1, s, lane]
            for k in range(len(fixed)):
                row[FIXED + k] = fixed[k, s, lane]
        for s in range(num_slices):
            row = table[lane, s, first:]
            row[NODE_CPU], row[NODE_UPLINK] = share(all_cpu), share(all_uplink)


@kernel
def correct(
    action: FloatArray,
    held: FloatArray,
    paced: BoolArray,
    axes: FloatArray,
    settings: Records,
    state: Records,
    nodes: Records,
    values: FloatArray,
    rows: FloatArray,
) -> bool:
    """Knobs (3, S, L) for corrections (L, S, 5) of the rule's decision, and their positions (3, S, L).

    A slice that is absent keeps the positions that are held, (3, S, L); so does the egress of a lane that is not paced,
    (L,). Returns whether all corrections are finite.
    """
    lanes, num_slices, _ = action.shape
    factors = np.empty((2, num_slices, lanes), np.float32)
    for s in range(num_slices):
        for lane in range(lanes):
            for k in range(NUM_CORRECTIONS):
                if not math.isfinite(action[lane, s, k]):
                    return False
            factors[0, s, lane] = np.float32(math.exp(BID_REACH * clipped(action[lane, s, 0])))
            factors[1, s, lane] = np.float32(math.exp(NEED_REACH * clipped(action[lane, s, 1])))
    grant(factors[0], factors[1], settings, state, nodes)
    rule = np.empty((NUM_KNOBS, num_slices, lanes), np.float32)
    shares = np.empty_like(rule)
    _positions(state, axes, rule, shares)
    positions = np.empty((lanes, num_slices, NUM_KNOBS), np.float32)
    for lane in range(lanes):
        for s in range(num_slices):
            row, item = positions[lane, s], state[s, lane]
            if not item.valid:
                for knob in range(NUM_KNOBS):
                    row[knob] = held[knob, s, lane]
                continue
            cpu, nice, egress = action[lane, s, 2], action[lane, s, 3], action[lane, s, 4]
            row[CPU_LIMIT] = departed(clipped(cpu), rule[CPU_LIMIT, s, lane], shares[CPU_LIMIT, s, lane], CPU_REACH)
            row[NICE] = rule[NICE, s, lane] + NICE_REACH * clipped(nice)
            row[EGRESS] = ONE
            if paced[lane]:
                row[EGRESS] = departed(clipped(egress), rule[EGRESS, s, lane], shares[EGRESS, s, lane], EGRESS_REACH)
    decode(positions, axes, values, rows)
    for s in range(num_slices):
        for lane in range(lanes):
            values[CPU_LIMIT, s, lane] = math.exp(values[CPU_LIMIT, s, lane])
            values[EGRESS, s, lane] = math.exp(values[EGRESS, s, lane])
    settle(values, settings, state)
    encode_knobs(values, axes, rows)
    return True


@kernel
def clipped(value: np.float32) -> np.float32:
    """A correction inside [-1, 1]."""
    return min(max(value, -ONE), ONE)


@kernel
def departed(departure: np.float32, rule: np.float32, share_at: np.float32, reach: np.float32) -> np.float32:
    """Position of a limit on its axis, for a departure in [-1, 1] from the rule's.

    Towards lower values a limit goes down from where it is, towards higher values up and then away. Beside a rule that
    leaves a slice free, it starts at the share, and nothing happens near 0.
    """
    free = rule > NONE_ABOVE
    if departure > (FREE_ABOVE if free else LET_GO_ABOVE):
        return ONE
    start = share_at + FREE_OFFSET * reach if free else rule
    return min(max(start + reach * departure, -ONE), NONE_ABOVE)
