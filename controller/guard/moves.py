"""How far may each knob go towards what the policy wants? Third kernel of the guard; records as of `layout`.

A knob's *axis* is the natural logarithm of a limit or a rate, on which "none" lies at the upper bound, and nice itself.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from slicepilot.controller.contracts.reasons import Reason
from slicepilot.env.compiled import kernel
from slicepilot.env.knobs import EGRESS, NICE, NUM_KNOBS

from . import layout as at
from .layout import State

# A knob at its bound comes back from a policy's logarithmic axis within this share of it.
ROUNDING = 1e-5
_TINY = 1e-9
_OUT_OF_RANGE, _SMALL, _DWELL, _SLEW = (
    reason.bit for reason in (Reason.OUT_OF_RANGE, Reason.HYSTERESIS, Reason.DWELL, Reason.SLEW)
)
_FLOOR, _OSCILLATION = Reason.FLOOR.bit, Reason.OSCILLATION.bit


@kernel()
def _is_none(k: int, value: float) -> bool:
    return k != NICE and (value == math.inf or value <= 0.0)


@kernel()
def _on_axis(k: int, value: float, high: float) -> float:
    if k == NICE:
        return value
    return math.log(high if _is_none(k, value) else value)


@kernel()
def _in_range(k: int, value: float, low: float, high: float) -> bool:
    if k == NICE:
        return low <= value <= high and value == np.rint(value)
    if value == math.inf or (k == EGRESS and value == 0.0):
        return True
    return low * (1.0 - ROUNDING) <= value <= high * (1.0 + ROUNDING)


@kernel()
def _is_small(k: int, wanted: float, held: float, small: float) -> bool:
    """Whether hysteresis takes a change for none; to or from "none" never is."""
    if k == NICE:
        return abs(wanted - held) < small
    if _is_none(k, wanted) or _is_none(k, held):
        return False
    return abs(wanted - held) < small * held


@kernel()
def _slewed(k: int, wanted: float, held: float, low: float, high: float, step: float) -> tuple[float, bool]:
    """As far towards what is wanted as one step goes, and whether that is short of it."""
    if k == NICE:
        step = max(math.floor(step + _TINY), 1.0)
    start, end = _on_axis(k, held, high), _on_axis(k, wanted, high)
    if abs(end - start) <= step * (1.0 + ROUNDING):
        return wanted, False
    reached = start + (step if end > start else -step)
    value = np.rint(reached) if k == NICE else math.exp(reached)
    return min(max(value, low), high), True


@kernel()
def _guarantee(k: int, value: float) -> float:
    """What grows with what a slice is guaranteed."""
    if k == NICE:
        return -value
    return math.inf if _is_none(k, value) else value


@kernel()
def _move(k: int, wanted: float, held: float, knob: np.record, rested: float, elapsed: float) -> tuple[float, int]:
    """One knob of a slice that follows the policy, and why it is not what is wanted.

    What was let through before and stays the same has been weighed already, however the kernel rounds it; a step
    that goes on in its direction is no change of its own.

    Args:
        rested, elapsed: ns since the knob changed and since the last tick.
    """
    rules = knob.rules
    value, bits = wanted, 0
    if not _in_range(k, wanted, rules.low, rules.high):
        value, bits = held, _OUT_OF_RANGE
    if not _is_none(k, value) and value < rules.floor:
        value, bits = rules.floor, bits | _FLOOR
    if value == held:
        return value, bits
    lowers = _guarantee(k, value) < _guarantee(k, held)
    goes_on = knob.memory.moving == (-1 if lowers else 1)
    if not goes_on and value != knob.memory.last_allowed and _is_small(k, value, held, rules.small):
        value, bits = held, bits | _SMALL
    elif not goes_on and lowers and rested < rules.dwell_ns:
        value, bits = held, bits | _DWELL
    else:
        value, short = _slewed(k, value, held, rules.low, rules.high, rules.slew_per_ns * elapsed)
        bits |= _SLEW if short else 0
    if not _is_none(k, value) and value < rules.floor:
        value, bits = rules.floor, bits | _FLOOR
    return value, bits


@kernel()
def _turned(place: float, knob: np.record) -> bool:
    """Whether a knob has turned back significantly since its last extreme; follows it."""
    memory, significant = knob.memory, knob.rules.significant
    direction = memory.direction
    if math.isnan(memory.extreme):
        memory.extreme = place
        return False
    moved = place - memory.extreme
    if direction == 0:
        if abs(moved) < significant:
            return False
    elif moved * direction >= 0.0:
        memory.extreme = place
        return False
    elif abs(moved) < significant:
        return False
    memory.extreme = place
    memory.direction = 1 if moved > 0.0 else -1
    return direction != 0


@kernel()
def _count_reversal(memory: np.record, ring: npt.NDArray[np.int64], rules: np.record, now: int) -> None:
    """Freeze a knob that has turned back too often; ``rules`` are the node's."""
    oldest = ring[memory.reversal]
    ring[memory.reversal] = now
    memory.reversal = (memory.reversal + 1) % len(ring)
    if now - oldest >= rules.window_ns:
        return
    if now - memory.frozen_until_ns > rules.forget_freeze_ns:
        memory.freezes = 0
    freeze = min(rules.freeze_ns * 2.0 ** min(memory.freezes, 40), rules.most_freeze_ns)
    memory.frozen_until_ns = now + math.ceil(freeze)
    memory.freezes += 1
    ring[:] = at.NEVER_NS


@kernel()
def _sound(k: int, held: float, safe: float) -> float:
    """What holds, or the safe value where that is no setting at all."""
    if k == NICE:
        return held if -20.0 <= held <= 19.0 and held == np.rint(held) else safe
    return held if held > 0.0 or (k == EGRESS and held == 0.0) else safe


@kernel()
def _follow(k: int, s: int, wanted: float, held: float, now: int, elapsed: float, state: State) -> tuple[float, int]:
    """One knob of a slice that follows the policy, unless it flips."""
    knob = state.slices[s].knobs[k]
    memory = knob.memory
    if now >= memory.frozen_until_ns:
        rested = float(now - memory.changed_at_ns)
        value, bits = _move(k, wanted, held, knob, rested, elapsed)
        raises = _guarantee(k, value) > _guarantee(k, held)
        memory.moving = (1 if raises else -1) if bits & _SLEW else 0
        if _turned(_on_axis(k, value, knob.rules.high), knob):
            _count_reversal(memory, state.reversals[k, s], state.node[0].rules, now)
        if now >= memory.frozen_until_ns:
            return value, bits
    _rest(memory)
    return knob.rules.safe, _OSCILLATION


@kernel()
def _rest(memory: np.record) -> None:
    """A knob that does not follow is neither under way nor turning back."""
    memory.moving, memory.direction, memory.extreme = 0, 0, math.nan


@kernel()
def move(wanted: npt.NDArray[np.float32], held: npt.NDArray[np.float32], now: int, state: State) -> None:
    """Set what is ``chosen`` for each knob on its slice's course; adds to the slice's reasons."""
    rules, before = state.node[0].rules, state.node[0].memory.before_ns
    elapsed = rules.period_ns
    if before != at.NEVER_NS:
        elapsed = min(max(float(now - before), elapsed), rules.most_elapsed_ns)
    state.node[0].memory.before_ns = now
    for k in range(NUM_KNOBS):
        for s in range(len(state.slices)):
            course, knob = state.slices[s].course, state.slices[s].knobs[k]
            memory = knob.memory
            holds = _sound(k, float(held[k, s, 0]), knob.rules.safe)
            if holds != memory.last_held:
                if not math.isnan(memory.last_held):
                    memory.changed_at_ns = before
                memory.last_held = holds
            if knob.rules.movable == 0:
                knob.chosen = float(held[k, s, 0])
                _rest(memory)
            elif course == at.FOLLOW:
                knob.chosen, bits = _follow(k, s, float(wanted[k, s, 0]), holds, now, elapsed, state)
                state.reasons[s] |= bits
            else:
                knob.chosen = holds if course == at.STAY else knob.rules.safe
                _rest(memory)
