"""Does the policy go on, do the knobs hold, or is it safe now, for whom? Second kernel of the guard; see `layout`."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from slicepilot.controller.contracts.modes import Level
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.env.compiled import kernel
from slicepilot.env.knobs import NICE, NUM_KNOBS

from . import layout as at
from .capacity import notice
from .layout import Measured, State
from .trips import node_tripped, slices_tripped

_NORMAL, _HOLD, _SAFE, _LATCHED = map(int, Level)
_NUMBER_BIT, _POLICY_BIT, _PAUSED_BIT = Reason.NOT_A_NUMBER.bit, Reason.POLICY_ERROR.bit, Reason.PAUSED.bit
_ORDERED_BIT, _SAFE_BIT, _OVERRUN_BIT = Reason.ORDERED_SAFE.bit, Reason.SAFE_SETTING.bit, Reason.OVERRUN.bit
_FLOOR_BIT, _SLICE_MISSING_BIT = Reason.SLA_FLOOR.bit, Reason.SLICE_MISSING.bit
_IMPLAUSIBLE_BIT = Reason.TELEMETRY_IMPLAUSIBLE.bit
_TRIAL_BIT, _INFEASIBLE_BIT, _LATCHED_BIT = (
    reason.bit for reason in (Reason.FLOOR_TRIAL, Reason.FLOOR_INFEASIBLE, Reason.LATCHED)
)


@kernel()
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


@kernel()
def _numbers(wanted: npt.NDArray[np.float32]) -> bool:
    """Whether a decision consists of numbers; inf stands for "none", which nice has not."""
    for s in range(wanted.shape[1]):
        for k in range(NUM_KNOBS):
            if math.isnan(wanted[k, s, 0]) or (k == NICE and math.isinf(wanted[k, s, 0])):
                return False
    return True


@kernel()
def _courses(measured: Measured, state: State, common: int, now: int) -> None:
    """The common course, but for slices that are not measured, are doubted or have tripped; each slice's reasons."""
    for s in range(len(state.slices)):
        one, absent = state.slices[s], not measured.valid[s, 0]
        one.course, reasons = common, 0
        out = absent or one.doubted != 0
        if out:
            one.left_out = _SLICE_MISSING_BIT if absent else _IMPLAUSIBLE_BIT
        if _condition(one.missing, out, now):
            one.course, reasons = at.TO_SAFE, one.left_out | _SAFE_BIT
        elif out:
            one.course, reasons = max(common, at.STAY), one.left_out
        if one.tripped != 0:
            one.course = at.TO_SAFE
            reasons |= _FLOOR_BIT | _SAFE_BIT
            reasons |= _TRIAL_BIT if one.trial.counts_at_ns != at.NEVER_NS else 0
            reasons |= _LATCHED_BIT if one.trip.latched != 0 else 0
        if one.excused != 0:
            reasons |= _INFEASIBLE_BIT
        state.reasons[s] = reasons


# What calls another file has no cache of its own, which would not notice a change there: the cache of a whole tick does
# (`work.judge_of`).
@kernel(cache=False)
def watch(
    measured: Measured, doubts: int, wanted: npt.NDArray[np.float32], failed: bool, now: int, state: State
) -> tuple[int, int]:
    """Level and the node's reasons; sets each slice's ``course`` (FOLLOW, STAY, TO_SAFE) and its reasons so far.

    ``doubts`` are reasons not to believe the measurement.
    """
    node = state.node[0]
    memory = node.memory
    garbled = not failed and not _numbers(wanted)
    safe, usable = memory.ordered_safe != 0, doubts == 0
    for c, bad in ((at.TELEMETRY_BAD, doubts != 0), (at.NOT_A_NUMBER, garbled), (at.POLICY_FAILED, failed)):
        if _condition(node.conditions[c], bad, now):
            safe = True
    if node_tripped(node, safe, now):
        safe = True
    if usable:
        notice(measured, state, now)
    slices_tripped(measured, state, usable, memory.in_control != 0 and not safe, now)
    bits = doubts
    bits |= _NUMBER_BIT if garbled else 0
    bits |= _POLICY_BIT if failed else 0
    bits |= _PAUSED_BIT if memory.paused != 0 else 0
    common = at.STAY if bits != 0 else at.FOLLOW
    bits |= _ORDERED_BIT if memory.ordered_safe != 0 else 0
    bits |= _OVERRUN_BIT if memory.by_overrun != 0 else 0
    bits |= _LATCHED_BIT if node.trip.latched != 0 else 0
    if safe:
        bits, common = bits | _SAFE_BIT, at.TO_SAFE
    _courses(measured, state, common, now)
    if node.trip.latched != 0:
        return _LATCHED, bits
    return (_NORMAL, _HOLD, _SAFE)[common], bits
