"""Does the policy go on, do the knobs hold, or is it safe now? Second kernel of the guard, as `guard_telemetry`."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from ...env.knobs import NICE, NUM_KNOBS
from ...env.telemetry import SLICE_FIELDS
from ..contracts.modes import Level
from ..contracts.reasons import Reason
from . import layout as at

_P99 = SLICE_FIELDS.index("delay_p99_us")
_LEAST_MBPS = 1e-3  # less than this is missing by rounding
_NORMAL, _HOLD, _SAFE, _LATCHED = map(int, Level)
_NUMBER_BIT, _POLICY_BIT, _PAUSED_BIT = Reason.NOT_A_NUMBER.bit, Reason.POLICY_ERROR.bit, Reason.PAUSED.bit
_ORDERED_BIT, _SAFE_BIT, _OVERRUN_BIT = Reason.ORDERED_SAFE.bit, Reason.SAFE_SETTING.bit, Reason.OVERRUN.bit
_FLOOR_BIT, _SLICE_MISSING_BIT = Reason.SLA_FLOOR.bit, Reason.SLICE_MISSING.bit


@njit(cache=True, error_model="numpy")
def _condition(memory: np.ndarray, c: int, bad: bool, patience: int, recovery: int, now: int) -> bool:
    """Whether a condition calls for the safe setting: bad until patience had run out, and not yet well for long."""
    if bad:
        if memory[at.BAD_SINCE, c] == at.NEVER_NS:
            memory[at.BAD_SINCE, c] = now
        if now - memory[at.BAD_SINCE, c] >= patience:
            memory[at.ACTIVE, c] = 1
        memory[at.GOOD_SINCE, c] = at.NEVER_NS
        return memory[at.ACTIVE, c] == 1
    memory[at.BAD_SINCE, c] = at.NEVER_NS
    if memory[at.ACTIVE, c] == 1:
        if memory[at.GOOD_SINCE, c] == at.NEVER_NS:
            memory[at.GOOD_SINCE, c] = now
        if now - memory[at.GOOD_SINCE, c] >= recovery:
            memory[at.ACTIVE, c] = 0
    return memory[at.ACTIVE, c] == 1


@njit(cache=True, error_model="numpy")
def _starved(
    slices: np.ndarray, valid: np.ndarray, rules: np.ndarray, service: np.ndarray, sums: np.ndarray, now: int
) -> bool:
    """Whether a slice has been below its service floor for longer than it may; marks which."""
    starved = False
    for s in range(len(valid)):
        samples = service[at.SAMPLES, s]
        owed = min(sums[at.OFFERED_SUM, s], rules[at.COMMITTED, s] * samples) * rules[at.CARRIED_RATIO, s]
        below = valid[s, 0] and sums[at.CARRIED_SUM, s] < owed - _LEAST_MBPS * samples
        slow = valid[s, 0] and slices[_P99, s, 0] > rules[at.MOST_DELAY_US, s]
        for row, bad in ((at.BELOW_SINCE, below), (at.SLOW_SINCE, slow)):
            if not bad:
                service[row, s] = at.NEVER_NS
            elif service[row, s] == at.NEVER_NS:
                service[row, s] = now
            if bad and now - service[row, s] >= rules[at.FLOOR_PATIENCE, s]:
                service[at.TRIPPED, s] = 1
                starved = True
    return starved


@njit(cache=True, error_model="numpy")
def _trip(memory: np.ndarray, rules: np.ndarray, now: int) -> None:
    """Safe for a while; for longer each time, and at some time for good."""
    if now - memory[at.SAFE_UNTIL] > rules[at.FORGET_TRIPS_NS]:
        memory[at.TRIPS] = 0
    hold = min(rules[at.SAFE_NS] * 2.0 ** min(memory[at.TRIPS], 40), rules[at.MOST_SAFE_NS])
    memory[at.SAFE_UNTIL] = now + math.ceil(hold)
    memory[at.TRIPS] += 1
    if memory[at.TRIPS] >= rules[at.LATCH_AFTER]:
        memory[at.LATCHED] = 1


@njit(cache=True, error_model="numpy")
def _numbers(wanted: np.ndarray) -> bool:
    """Whether a decision consists of numbers; inf stands for "none", which nice has not."""
    for s in range(wanted.shape[1]):
        for k in range(NUM_KNOBS):
            if math.isnan(wanted[k, s, 0]) or (k == NICE and math.isinf(wanted[k, s, 0])):
                return False
    return True


@njit(cache=True, error_model="numpy")
def _tripped(
    slices: np.ndarray,
    valid: np.ndarray,
    usable: bool,
    elsewise_safe: bool,
    now: int,
    rules: np.ndarray,
    slice_rules: np.ndarray,
    memory: np.ndarray,
    service: np.ndarray,
    sums: np.ndarray,
) -> bool:
    """Whether a trip, an old one or one of this tick, asks for the safe setting."""
    over = now >= memory[at.SAFE_UNTIL] and memory[at.LATCHED] == 0
    if over:
        memory[at.BY_OVERRUN] = 0
        service[at.TRIPPED] = 0
    if elsewise_safe or not over or memory[at.ACTING] == 0:
        service[at.BELOW_SINCE : at.SLOW_SINCE + 1] = at.NEVER_NS
    if elsewise_safe or not over:
        memory[at.OVERRAN] = 0
        return not over
    acting = usable and memory[at.ACTING] != 0
    starved = acting and _starved(slices, valid, slice_rules, service, sums, now)
    if starved or memory[at.OVERRAN] != 0:
        memory[at.BY_OVERRUN], memory[at.OVERRAN] = memory[at.OVERRAN], 0
        _trip(memory, rules, now)
        return True
    return False


@njit(cache=True, error_model="numpy")
def _courses(
    valid: np.ndarray,
    common: int,
    now: int,
    delays: np.ndarray,
    conditions: np.ndarray,
    service: np.ndarray,
    course: np.ndarray,
    reasons: np.ndarray,
) -> None:
    """The common course, but for slices that are not measured."""
    for s in range(len(valid)):
        c, absent = at.CONDITIONS + s, not valid[s, 0]
        course[s], reasons[s] = common, 0
        if _condition(conditions, c, absent, delays[at.PATIENCE, c], delays[at.RECOVERY, c], now):
            course[s], reasons[s] = at.TO_SAFE, _SLICE_MISSING_BIT
        elif absent:
            course[s], reasons[s] = max(common, at.STAY), _SLICE_MISSING_BIT
        if service[at.TRIPPED, s] != 0:
            reasons[s] |= _FLOOR_BIT


@njit(cache=True, error_model="numpy")
def watch(
    slices: np.ndarray,
    valid: np.ndarray,
    doubts: int,
    wanted: np.ndarray,
    failed: bool,
    now: int,
    rules: np.ndarray,
    slice_rules: np.ndarray,
    delays: np.ndarray,
    memory: np.ndarray,
    conditions: np.ndarray,
    service: np.ndarray,
    sums: np.ndarray,
    course: np.ndarray,
    reasons: np.ndarray,
) -> tuple[int, int]:
    """Level and the node's reasons; fills each slice's ``course`` (FOLLOW, STAY, TO_SAFE) and its reasons so far.

    ``doubts`` are reasons not to believe the measurement; ``delays`` patience and recovery of each condition, ints
    (2, CONDITIONS + S).
    """
    garbled = not failed and not _numbers(wanted)
    safe = memory[at.ORDERED_SAFE] != 0
    for c, bad in ((at.TELEMETRY_BAD, doubts != 0), (at.NOT_A_NUMBER, garbled), (at.POLICY_FAILED, failed)):
        if _condition(conditions, c, bad, delays[at.PATIENCE, c], delays[at.RECOVERY, c], now):
            safe = True
    if _tripped(slices, valid, doubts == 0, safe, now, rules, slice_rules, memory, service, sums):
        safe = True
    bits = doubts
    bits |= _NUMBER_BIT if garbled else 0
    bits |= _POLICY_BIT if failed else 0
    bits |= _PAUSED_BIT if memory[at.PAUSED] != 0 else 0
    common = at.STAY if bits != 0 else at.FOLLOW
    bits |= _ORDERED_BIT if memory[at.ORDERED_SAFE] != 0 else 0
    bits |= _OVERRUN_BIT if memory[at.BY_OVERRUN] != 0 else 0
    if safe:
        bits, common = bits | _SAFE_BIT, at.TO_SAFE
    _courses(valid, common, now, delays, conditions, service, course, reasons)
    if memory[at.LATCHED] != 0:
        return _LATCHED, bits
    return (_NORMAL, _HOLD, _SAFE)[common], bits
