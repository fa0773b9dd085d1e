"""Does the policy go on, do the knobs hold, or is it safe now? Second kernel of the guard; records as of `layout`."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from ...env.knobs import NICE, NUM_KNOBS
from ..contracts.modes import Level
from ..contracts.reasons import Reason
from . import layout as at
from .floors import forget, nobody_could, notice, policy_again, starved
from .layout import Measured, State

_NORMAL, _HOLD, _SAFE, _LATCHED = map(int, Level)
_NUMBER_BIT, _POLICY_BIT, _PAUSED_BIT = Reason.NOT_A_NUMBER.bit, Reason.POLICY_ERROR.bit, Reason.PAUSED.bit
_ORDERED_BIT, _SAFE_BIT, _OVERRUN_BIT = Reason.ORDERED_SAFE.bit, Reason.SAFE_SETTING.bit, Reason.OVERRUN.bit
_FLOOR_BIT, _SLICE_MISSING_BIT = Reason.SLA_FLOOR.bit, Reason.SLICE_MISSING.bit
_TRIAL_BIT, _INFEASIBLE_BIT = Reason.FLOOR_TRIAL.bit, Reason.FLOOR_INFEASIBLE.bit


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
def _trip(node: np.record, now: int) -> None:
    """Safe for a while, and for longer each time."""
    rules, memory = node.rules, node.memory
    memory.safe_before_ns, memory.trips_before = memory.safe_until_ns, memory.trips
    if now - memory.safe_until_ns > rules.forget_trips_ns:
        memory.trips = 0
    hold = min(rules.safe_ns * 2.0 ** min(memory.trips, 40), rules.most_safe_ns)
    memory.safe_until_ns = now + math.ceil(hold)


@njit(cache=True, error_model="numpy")
def _count(node: np.record) -> None:
    """The trip in force counts; at some time it is for good."""
    node.memory.counts_at_ns = at.NEVER_NS
    node.memory.trips += 1
    if node.memory.trips >= node.rules.latch_after:
        node.memory.latched = 1


@njit(cache=True, error_model="numpy")
def _withdraw(node: np.record) -> None:
    """The trip in force was nobody's fault: as if it had not been."""
    memory = node.memory
    memory.safe_until_ns, memory.trips, memory.on_trial = memory.safe_before_ns, memory.trips_before, 0
    memory.counts_at_ns = at.NEVER_NS


@njit(cache=True, error_model="numpy")
def _numbers(wanted: npt.NDArray[np.float32]) -> bool:
    """Whether a decision consists of numbers; inf stands for "none", which nice has not."""
    for s in range(wanted.shape[1]):
        for k in range(NUM_KNOBS):
            if math.isnan(wanted[k, s, 0]) or (k == NICE and math.isinf(wanted[k, s, 0])):
                return False
    return True


@njit(cache=True, error_model="numpy")
def _end(state: State) -> None:
    """No trip is in force any more."""
    memory = state.node[0].memory
    memory.by_overrun, memory.on_trial = 0, 0
    for s in range(len(state.slices)):
        for k in range(at.FLOORS):
            state.slices[s].floors[k].tripped = 0


# What calls another file has no cache of its own, which would not notice a change there: the cache of a whole tick does
# (`work.judge_of`).
@njit(error_model="numpy")
def _try(measured: Measured, state: State, sound: bool, now: int) -> bool:
    """Whether a trip for service floors turns out to be nobody's fault.

    The safe setting is on trial as long as the trip lasts; if it stands by then, the trip counts. So it does at once
    when the trial cannot be relied on any more (not ``sound``).
    """
    node = state.node[0]
    memory = node.memory
    if memory.on_trial == 0:
        return False
    if sound and nobody_could(measured, state, now):
        _withdraw(node)
        return True
    over = now >= memory.counts_at_ns and now >= memory.safe_until_ns
    if memory.counts_at_ns != at.NEVER_NS and (over or not sound):
        _count(node)
    if not sound or memory.latched != 0:
        memory.on_trial = 0
    return False


@njit(error_model="numpy")
def _tripped(measured: Measured, state: State, usable: bool, elsewise_safe: bool, now: int) -> bool:
    """Whether a trip, an old one or one of this tick, asks for the safe setting."""
    memory = state.node[0].memory
    for s in range(len(state.slices)):
        state.slices[s].excused = 0
    if usable:
        notice(measured, state)
    sound = memory.in_control != 0 and not elsewise_safe
    in_force = now < memory.safe_until_ns or memory.latched != 0 or memory.counts_at_ns != at.NEVER_NS
    if in_force and (usable or not sound) and _try(measured, state, sound, now):
        _end(state)
        policy_again(state, now)
        memory.overran = 0
        return False
    in_force = now < memory.safe_until_ns or memory.latched != 0 or memory.counts_at_ns != at.NEVER_NS
    if not in_force:
        if memory.on_trial != 0:
            policy_again(state, now)
        _end(state)
    if not sound or (in_force and memory.on_trial == 0):
        forget(state)
    if elsewise_safe or in_force:
        memory.overran = 0
        return in_force
    broken = usable and sound and starved(measured, state, now)
    if broken or memory.overran != 0:
        memory.by_overrun, memory.overran = memory.overran, 0
        _trip(state.node[0], now)
        if memory.by_overrun != 0:
            memory.on_trial = 0
            _count(state.node[0])
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
        if one.floors[at.RATE].tripped != 0 or one.floors[at.DELAY].tripped != 0:
            state.reasons[s] |= _FLOOR_BIT
        if one.excused != 0:
            state.reasons[s] |= _INFEASIBLE_BIT


@njit(error_model="numpy")
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
    bits |= _TRIAL_BIT if memory.counts_at_ns != at.NEVER_NS else 0
    if safe:
        bits, common = bits | _SAFE_BIT, at.TO_SAFE
    _courses(measured, state, common, now)
    if memory.latched != 0:
        return _LATCHED, bits
    return (_NORMAL, _HOLD, _SAFE)[common], bits
