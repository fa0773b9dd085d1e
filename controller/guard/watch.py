"""Does the policy go on, do the knobs hold, or is it safe now? Second kernel of the guard; records as of `layout`."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from ...env.knobs import NICE, NUM_KNOBS
from ...env.telemetry import SLICE_FIELDS
from ..contracts.modes import Level
from ..contracts.reasons import Reason
from . import layout as at
from .layout import Measured, State

_P99 = SLICE_FIELDS.index("delay_p99_us")
_LEAST_MBPS = 1e-3  # less than this is missing by rounding
_NORMAL, _HOLD, _SAFE, _LATCHED = map(int, Level)
_NUMBER_BIT, _POLICY_BIT, _PAUSED_BIT = Reason.NOT_A_NUMBER.bit, Reason.POLICY_ERROR.bit, Reason.PAUSED.bit
_ORDERED_BIT, _SAFE_BIT, _OVERRUN_BIT = Reason.ORDERED_SAFE.bit, Reason.SAFE_SETTING.bit, Reason.OVERRUN.bit
_FLOOR_BIT, _SLICE_MISSING_BIT = Reason.SLA_FLOOR.bit, Reason.SLICE_MISSING.bit


@njit(cache=True, error_model="numpy")
def _condition(condition: np.record, bad: bool, now: int) -> bool:
    """Whether a condition calls for the safe setting: bad until patience had run out, and not yet well for long."""
    rules, memory = condition.rules, condition.memory
    if bad:
        if memory.bad_since_ns == at.NEVER_NS:
            memory.bad_since_ns = now
        if now - memory.bad_since_ns >= rules.patience_ns:
            memory.active = 1
        memory.good_since_ns = at.NEVER_NS
        return memory.active == 1
    memory.bad_since_ns = at.NEVER_NS
    if memory.active == 1:
        if memory.good_since_ns == at.NEVER_NS:
            memory.good_since_ns = now
        if now - memory.good_since_ns >= rules.recovery_ns:
            memory.active = 0
    return memory.active == 1


@njit(cache=True, error_model="numpy")
def _since(since: int, bad: bool, now: int) -> int:
    """Since when something is bad, given since when it was at the last tick."""
    if not bad:
        return at.NEVER_NS
    return now if since == at.NEVER_NS else since


@njit(cache=True, error_model="numpy")
def _starved(measured: Measured, state: State, now: int) -> bool:
    """Whether a slice has been below its service floor for longer than it may; marks which."""
    starved = False
    for s in range(len(state.slices)):
        rules, memory, valid = state.slices[s].rules, state.slices[s].memory, measured.valid[s, 0]
        owed = min(memory.offered_sum, rules.committed_mbps * memory.samples) * rules.carried_ratio
        below = valid and memory.carried_sum < owed - _LEAST_MBPS * memory.samples
        slow = valid and measured.slices[_P99, s, 0] > rules.most_delay_us
        memory.below_since_ns = _since(memory.below_since_ns, below, now)
        memory.slow_since_ns = _since(memory.slow_since_ns, slow, now)
        long_below = below and now - memory.below_since_ns >= rules.floor_patience_ns
        long_slow = slow and now - memory.slow_since_ns >= rules.floor_patience_ns
        if long_below or long_slow:
            memory.tripped = 1
            starved = True
    return starved


@njit(cache=True, error_model="numpy")
def _trip(node: np.record, now: int) -> None:
    """Safe for a while; for longer each time, and at some time for good."""
    rules, memory = node.rules, node.memory
    if now - memory.safe_until_ns > rules.forget_trips_ns:
        memory.trips = 0
    hold = min(rules.safe_ns * 2.0 ** min(memory.trips, 40), rules.most_safe_ns)
    memory.safe_until_ns = now + math.ceil(hold)
    memory.trips += 1
    if memory.trips >= rules.latch_after:
        memory.latched = 1


@njit(cache=True, error_model="numpy")
def _numbers(wanted: npt.NDArray[np.float32]) -> bool:
    """Whether a decision consists of numbers; inf stands for "none", which nice has not."""
    for s in range(wanted.shape[1]):
        for k in range(NUM_KNOBS):
            if math.isnan(wanted[k, s, 0]) or (k == NICE and math.isinf(wanted[k, s, 0])):
                return False
    return True


@njit(cache=True, error_model="numpy")
def _tripped(measured: Measured, state: State, usable: bool, elsewise_safe: bool, now: int) -> bool:
    """Whether a trip, an old one or one of this tick, asks for the safe setting."""
    memory = state.node[0].memory
    over = now >= memory.safe_until_ns and memory.latched == 0
    if over:
        memory.by_overrun = 0
        for s in range(len(state.slices)):
            state.slices[s].memory.tripped = 0
    if elsewise_safe or not over or memory.in_control == 0:
        for s in range(len(state.slices)):
            service = state.slices[s].memory
            service.below_since_ns, service.slow_since_ns = at.NEVER_NS, at.NEVER_NS
    if elsewise_safe or not over:
        memory.overran = 0
        return not over
    starved = usable and memory.in_control != 0 and _starved(measured, state, now)
    if starved or memory.overran != 0:
        memory.by_overrun, memory.overran = memory.overran, 0
        _trip(state.node[0], now)
        return True
    return False


@njit(cache=True, error_model="numpy")
def _courses(measured: Measured, state: State, common: int, now: int) -> None:
    """The common course, but for slices that are not measured."""
    for s in range(len(state.slices)):
        one, absent = state.slices[s], not measured.valid[s, 0]
        one.course, state.reasons[s] = common, 0
        if _condition(one.missing, absent, now):
            one.course, state.reasons[s] = at.TO_SAFE, _SLICE_MISSING_BIT
        elif absent:
            one.course, state.reasons[s] = max(common, at.STAY), _SLICE_MISSING_BIT
        if one.memory.tripped != 0:
            state.reasons[s] |= _FLOOR_BIT


@njit(cache=True, error_model="numpy")
def watch(
    measured: Measured, doubts: int, wanted: npt.NDArray[np.float32], failed: bool, now: int, state: State
) -> tuple[int, int]:
    """Level and the node's reasons; sets each slice's ``course`` (FOLLOW, STAY, TO_SAFE) and its reasons so far.

    ``doubts`` are reasons not to believe the measurement.
    """
    node = state.node[0]
    memory = node.memory
    garbled = not failed and not _numbers(wanted)
    safe = memory.ordered_safe != 0
    for c, bad in ((at.TELEMETRY_BAD, doubts != 0), (at.NOT_A_NUMBER, garbled), (at.POLICY_FAILED, failed)):
        if _condition(node.conditions[c], bad, now):
            safe = True
    if _tripped(measured, state, doubts == 0, safe, now):
        safe = True
    bits = doubts
    bits |= _NUMBER_BIT if garbled else 0
    bits |= _POLICY_BIT if failed else 0
    bits |= _PAUSED_BIT if memory.paused != 0 else 0
    common = at.STAY if bits != 0 else at.FOLLOW
    bits |= _ORDERED_BIT if memory.ordered_safe != 0 else 0
    bits |= _OVERRUN_BIT if memory.by_overrun != 0 else 0
    if safe:
        bits, common = bits | _SAFE_BIT, at.TO_SAFE
    _courses(measured, state, common, now)
    if memory.latched != 0:
        return _LATCHED, bits
    return (_NORMAL, _HOLD, _SAFE)[common], bits
