"""How far may each knob go towards the wish? Third kernel of the guard, as `guard_telemetry`.

A knob's *axis* is the natural logarithm of a limit or a rate, on which "none" lies at the upper bound, and nice itself.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from ...env.knobs import EGRESS, NICE, NUM_KNOBS
from ..contracts.reasons import Reason
from . import layout as at

# A knob at its bound comes back from a policy's logarithmic axis within this share of it.
ROUNDING = 1e-5
_TINY = 1e-9
_OUT_OF_RANGE, _SMALL, _DWELL, _SLEW = (
    reason.bit for reason in (Reason.OUT_OF_RANGE, Reason.HYSTERESIS, Reason.DWELL, Reason.SLEW)
)
_FLOOR, _OSCILLATION = Reason.FLOOR.bit, Reason.OSCILLATION.bit


@njit(cache=True, error_model="numpy")
def _is_none(k: int, value: float) -> bool:
    return k != NICE and (value == math.inf or value <= 0.0)


@njit(cache=True, error_model="numpy")
def _on_axis(k: int, value: float, high: float) -> float:
    if k == NICE:
        return value
    return math.log(high if _is_none(k, value) else value)


@njit(cache=True, error_model="numpy")
def _in_range(k: int, value: float, low: float, high: float) -> bool:
    if k == NICE:
        return low <= value <= high and value == np.rint(value)
    if value == math.inf or (k == EGRESS and value == 0.0):
        return True
    return low * (1.0 - ROUNDING) <= value <= high * (1.0 + ROUNDING)


@njit(cache=True, error_model="numpy")
def _is_small(k: int, wish: float, held: float, small: float) -> bool:
    """Whether hysteresis takes a change for none; to or from "none" never is."""
    if k == NICE:
        return abs(wish - held) < small
    if _is_none(k, wish) or _is_none(k, held):
        return False
    return abs(wish - held) < small * held


@njit(cache=True, error_model="numpy")
def _slewed(k: int, wish: float, held: float, low: float, high: float, step: float) -> tuple[float, bool]:
    """As far towards the wish as one step goes, and whether that is short of it."""
    if k == NICE:
        step = max(math.floor(step + _TINY), 1.0)
    start, end = _on_axis(k, held, high), _on_axis(k, wish, high)
    if abs(end - start) <= step * (1.0 + ROUNDING):
        return wish, False
    reached = start + (step if end > start else -step)
    value = np.rint(reached) if k == NICE else math.exp(reached)
    return min(max(value, low), high), True


@njit(cache=True, error_model="numpy")
def _guarantee(k: int, value: float) -> float:
    """What grows with what a slice is guaranteed."""
    if k == NICE:
        return -value
    return math.inf if _is_none(k, value) else value


@njit(cache=True, error_model="numpy")
def _move(
    k: int, wish: float, held: float, last: float, moving: int, rested: float, elapsed: float, rule: np.ndarray
) -> tuple[float, int]:
    """One knob of a slice that follows the policy, and why it is not the wish.

    Args:
        last: let through before. A wish that stays the same has been weighed already, however the kernel rounds it.
        moving: direction of a step that fell short of its end; what goes on is no change of its own.
        rested, elapsed: ns since the knob changed and since the last tick.
    """
    low, high, floor = rule[at.LOW], rule[at.HIGH], rule[at.FLOOR_AT]
    value, bits = wish, 0
    if not _in_range(k, wish, low, high):
        value, bits = held, _OUT_OF_RANGE
    if not _is_none(k, value) and value < floor:
        value, bits = floor, bits | _FLOOR
    if value == held:
        return value, bits
    lowers = _guarantee(k, value) < _guarantee(k, held)
    goes_on = moving == (-1 if lowers else 1)
    if not goes_on and value != last and _is_small(k, value, held, rule[at.SMALL]):
        value, bits = held, bits | _SMALL
    elif not goes_on and lowers and rested < rule[at.DWELL_NS]:
        value, bits = held, bits | _DWELL
    else:
        value, short = _slewed(k, value, held, low, high, rule[at.SLEW] * elapsed)
        bits |= _SLEW if short else 0
    if not _is_none(k, value) and value < floor:
        value, bits = floor, bits | _FLOOR
    return value, bits


@njit(cache=True, error_model="numpy")
def _turned(k: int, s: int, place: float, significant: float, times: np.ndarray, values: np.ndarray) -> bool:
    """Whether a knob has turned back significantly since its last extreme; follows it."""
    extreme, direction = values[at.EXTREME, k, s], times[at.DIRECTION, k, s]
    if math.isnan(extreme):
        values[at.EXTREME, k, s] = place
        return False
    moved = place - extreme
    if direction == 0:
        if abs(moved) < significant:
            return False
    elif moved * direction >= 0.0:
        values[at.EXTREME, k, s] = place
        return False
    elif abs(moved) < significant:
        return False
    values[at.EXTREME, k, s] = place
    times[at.DIRECTION, k, s] = 1 if moved > 0.0 else -1
    return direction != 0


@njit(cache=True, error_model="numpy")
def _count_reversal(
    k: int, s: int, now: int, rules: np.ndarray, times: np.ndarray, values: np.ndarray, reversals: np.ndarray
) -> None:
    """Freeze a knob that has turned back too often."""
    ring = reversals[k, s]
    oldest = ring[times[at.REVERSAL, k, s]]
    ring[times[at.REVERSAL, k, s]] = now
    times[at.REVERSAL, k, s] = (times[at.REVERSAL, k, s] + 1) % len(ring)
    if now - oldest >= rules[at.WINDOW_NS]:
        return
    if now - times[at.FROZEN_UNTIL, k, s] > rules[at.FORGET_FREEZE_NS]:
        times[at.FREEZES, k, s] = 0
    freeze = min(rules[at.FREEZE_NS] * 2.0 ** min(times[at.FREEZES, k, s], 40), rules[at.MOST_FREEZE_NS])
    times[at.FROZEN_UNTIL, k, s] = now + math.ceil(freeze)
    times[at.FREEZES, k, s] += 1
    ring[:] = at.NEVER_NS


@njit(cache=True, error_model="numpy")
def _sound(k: int, held: float, safe: float) -> float:
    """What holds, or the safe value where that is no setting at all."""
    if k == NICE:
        return held if -20.0 <= held <= 19.0 and held == np.rint(held) else safe
    return held if held > 0.0 or (k == EGRESS and held == 0.0) else safe


@njit(cache=True, error_model="numpy")
def _follow(
    k: int,
    s: int,
    wish: float,
    held: float,
    now: int,
    elapsed: float,
    rules: np.ndarray,
    move_rules: np.ndarray,
    times: np.ndarray,
    values: np.ndarray,
    reversals: np.ndarray,
) -> tuple[float, int]:
    """One knob of a slice that follows the policy, unless it flips."""
    rule = rules[:, k, s]
    if now >= times[at.FROZEN_UNTIL, k, s]:
        rested, last = float(now - times[at.CHANGED_AT, k, s]), values[at.LAST_ALLOWED, k, s]
        value, bits = _move(k, wish, held, last, times[at.MOVING, k, s], rested, elapsed, rule)
        raises = _guarantee(k, value) > _guarantee(k, held)
        times[at.MOVING, k, s] = (1 if raises else -1) if bits & _SLEW else 0
        if _turned(k, s, _on_axis(k, value, rule[at.HIGH]), rule[at.SIGNIFICANT], times, values):
            _count_reversal(k, s, now, move_rules, times, values, reversals)
        if now >= times[at.FROZEN_UNTIL, k, s]:
            return value, bits
    _rest(k, s, times, values)
    return rule[at.SAFE_AT], _OSCILLATION


@njit(cache=True, error_model="numpy")
def _rest(k: int, s: int, times: np.ndarray, values: np.ndarray) -> None:
    """A knob that does not follow is neither under way nor turning back."""
    times[at.MOVING, k, s], times[at.DIRECTION, k, s], values[at.EXTREME, k, s] = 0, 0, math.nan


@njit(cache=True, error_model="numpy")
def move(
    wanted: np.ndarray,
    held: np.ndarray,
    now: int,
    rules: np.ndarray,
    move_rules: np.ndarray,
    memory: np.ndarray,
    times: np.ndarray,
    values: np.ndarray,
    reversals: np.ndarray,
    course: np.ndarray,
    reasons: np.ndarray,
    chosen: np.ndarray,
) -> None:
    """Fill ``chosen`` (3, S) with each slice's knobs on its course; adds to its reasons."""
    before = memory[at.BEFORE]
    elapsed = move_rules[at.PERIOD_NS]
    if before != at.NEVER_NS:
        elapsed = min(max(float(now - before), elapsed), move_rules[at.MOST_ELAPSED_NS])
    memory[at.BEFORE] = now
    for k in range(NUM_KNOBS):
        for s in range(len(course)):
            holds = _sound(k, float(held[k, s, 0]), rules[at.SAFE_AT, k, s])
            if holds != values[at.LAST_HELD, k, s]:
                if not math.isnan(values[at.LAST_HELD, k, s]):
                    times[at.CHANGED_AT, k, s] = before
                values[at.LAST_HELD, k, s] = holds
            if course[s] == at.FOLLOW:
                wish = float(wanted[k, s, 0])
                chosen[k, s], bits = _follow(
                    k, s, wish, holds, now, elapsed, rules, move_rules, times, values, reversals
                )
                reasons[s] |= bits
            else:
                chosen[k, s] = holds if course[s] == at.STAY else rules[at.SAFE_AT, k, s]
                _rest(k, s, times, values)
