"""Rules on each knob of a slice that follows the policy, and on the CPU of all slices together."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from slicepilot.controller.contracts.reasons import Reason
from slicepilot.env.compiled import kernel
from slicepilot.env.knobs import CPU_LIMIT, EGRESS, NICE

from .records import HOLD, SAFE, Records

_OUT_OF_RANGE, _FLOOR, _SMALL = Reason.OUT_OF_RANGE.bit, Reason.FLOOR.bit, Reason.HYSTERESIS.bit
_DWELL, _SLEW = Reason.DWELL.bit, Reason.SLEW.bit
_OSCILLATION, _BUDGET = Reason.OSCILLATION.bit, Reason.BUDGET.bit
# A knob at its bound comes back from a policy's logarithmic scale within this share of it.
_ROUNDING = 1e-5
_TINY = 1e-9
# How far levels go back to the safe setting where they would deny a slice its share of the CPU, in so many steps.
_STEPS_BACK = 8


@kernel
def _is_none(knob: np.record, value: float) -> bool:
    """Whether a value is no limit, or no shaping."""
    return knob.kind != NICE and (value == math.inf or value <= 0.0)


@kernel
def _on_scale(knob: np.record, value: float) -> float:
    """Where changes are measured: nice itself, the logarithm of a limit or rate ("none" is the upper bound)."""
    if knob.kind == NICE:
        return value
    return math.log(knob.high if _is_none(knob, value) else value)


@kernel
def _way(knob: np.record) -> int:
    """-1 if what is to be set guarantees the slice less than what holds, else 1."""
    if knob.kind == NICE:
        return -1 if knob.value > knob.held else 1
    if _is_none(knob, knob.value):
        return 1
    return -1 if _is_none(knob, knob.held) or knob.value < knob.held else 1


@kernel
def bounds(knob: np.record, slice_: np.record) -> None:
    """A knob that is to leave its bounds holds."""
    value = knob.value
    if knob.kind == NICE:
        inside = knob.low <= value <= knob.high and value == np.rint(value)
    elif value == math.inf or (knob.kind == EGRESS and value == 0.0):
        inside = True
    else:
        inside = knob.low * (1.0 - _ROUNDING) <= value <= knob.high * (1.0 + _ROUNDING)
    if not inside:
        knob.value = knob.held
        slice_.reasons |= _OUT_OF_RANGE


@kernel
def floors(knob: np.record, slice_: np.record) -> None:
    """No CPU limit and no egress rate is lower than the slice's floor."""
    if knob.value < knob.floor and not _is_none(knob, knob.value):
        knob.value = knob.floor
        slice_.reasons |= _FLOOR


@kernel
def hysteresis(knob: np.record, slice_: np.record) -> None:
    """A change that is too small is not made; to or from "none" is never small.

    What was let through at the last tick has been weighed already, however the kernel rounds it, and a step that goes
    on is no change of its own.
    """
    if knob.value in (knob.held, knob.last_value) or knob.moving == _way(knob):
        return
    small = knob.small
    if knob.kind != NICE:
        if _is_none(knob, knob.value) or _is_none(knob, knob.held):
            return
        small *= knob.held
    if abs(knob.value - knob.held) < small:
        knob.value = knob.held
        slice_.reasons |= _SMALL


@kernel
def dwell(knob: np.record, slice_: np.record, now_ns: int) -> None:
    """A knob rests after it has changed: what lowers a slice's guarantee waits, what raises it never does."""
    if knob.value != knob.held and _way(knob) < 0 and knob.moving >= 0 and now_ns - knob.changed_ns < knob.rest_ns:
        knob.value = knob.held
        slice_.reasons |= _DWELL


@kernel
def slew(knob: np.record, slice_: np.record, elapsed_ns: float) -> None:
    """A knob moves as fast as declared, whatever the policy wants at once; by a level of nice at least."""
    way, knob.moving = _way(knob), 0
    if knob.value == knob.held:
        return
    step = knob.per_ns * elapsed_ns
    if knob.kind == NICE:
        step = max(math.floor(step + _TINY), 1.0)
    begin, end = _on_scale(knob, knob.held), _on_scale(knob, knob.value)
    if abs(end - begin) <= step * (1.0 + _ROUNDING):
        return
    reached = begin + (step if end > begin else -step)
    value = np.rint(reached) if knob.kind == NICE else math.exp(reached)
    knob.value, knob.moving = min(max(value, knob.low), knob.high), way
    slice_.reasons |= _SLEW


@kernel
def shape(knob: np.record, slice_: np.record, now_ns: int, elapsed_ns: float) -> None:
    """The rules that need to know of nothing but the knob, on what is wanted."""
    knob.value = knob.wanted
    bounds(knob, slice_)
    floors(knob, slice_)
    hysteresis(knob, slice_)
    dwell(knob, slice_, now_ns)
    slew(knob, slice_, elapsed_ns)
    floors(knob, slice_)  # again: the held value, or a step from it, may lie below


@kernel
def note_change(knob: np.record, before_ns: int, turns: npt.NDArray[np.int64]) -> None:
    """See whether what holds has changed since the last tick, and whether it has turned back.

    Turns are of what holds and not of what the policy wants: rules on all slices together may have changed that.
    """
    if knob.held != knob.last_held:
        if not np.isnan(knob.last_held):
            knob.changed_ns = before_ns
        knob.last_held = knob.held
    scaled = _on_scale(knob, knob.held)
    moved = scaled - knob.extreme
    if math.isnan(moved) or moved * knob.direction > 0.0:
        knob.extreme = scaled
    elif abs(moved) >= knob.significant:
        if knob.direction != 0:
            turns[knob.turn] = before_ns
            knob.turn = (knob.turn + 1) % len(turns)
        knob.extreme, knob.direction = scaled, 1 if moved > 0.0 else -1


@kernel
def oscillation(
    knob: np.record, slice_: np.record, now_ns: int, window_ns: float, turns: npt.NDArray[np.int64]
) -> None:
    """A knob that has turned back as often as it may is not lowered again until the first of these turns is long ago;
    what raises a slice's guarantee never waits."""
    back = (knob.extreme - _on_scale(knob, knob.value)) * knob.direction
    lowers = knob.value != knob.held and _way(knob) < 0
    if back >= knob.significant and lowers and now_ns - turns[knob.turn] < window_ns:
        knob.value, knob.moving = knob.held, 0
        slice_.reasons |= _OSCILLATION


@kernel
def rest(knob: np.record) -> None:
    """A knob that does not follow the policy is neither under way nor turning back."""
    knob.moving, knob.direction, knob.extreme = 0, 0, math.nan


@kernel
def cpu_shares(node: np.record, slices: Records, knobs: Records) -> None:
    """Move levels of nice back towards the safe levels until every slice has its share of a busy node."""
    if node.shares == 0 or node.action >= HOLD:
        return
    levels = knobs[NICE * len(slices) : (NICE + 1) * len(slices)]
    for step in range(_STEPS_BACK + 1):
        part, total, fits = step / _STEPS_BACK, 0.0, True
        for s in range(len(slices)):
            total += slices[s].weight * node.nice_weight[int(_level_back(levels[s], part)) + 20]
        for s in range(len(slices)):
            weight = slices[s].weight * node.nice_weight[int(_level_back(levels[s], part)) + 20]
            fits = fits and node.node_mcpu * weight / total >= slices[s].share_mcpu * (1.0 - _TINY)
        if fits or step == _STEPS_BACK:
            for s in range(len(slices)):
                level = _level_back(levels[s], part)
                if level != levels[s].value:
                    levels[s].value = level
                    slices[s].reasons |= _FLOOR
            return


@kernel
def _level_back(knob: np.record, part: float) -> float:
    """A nice level moved by this part of the way back to the safe level, if the knob moves."""
    if knob.movable == 0:
        return knob.value
    # Halves round upwards, so that levels that are equally far from their safe levels stay so.
    return knob.safe + math.floor((1.0 - part) * (knob.value - knob.safe) + 0.5)


@kernel
def cpu_budget(node: np.record, slices: Records, knobs: Records) -> None:
    """Scale the parts of CPU limits above their floors so that their sum fits the node; safe settings stay."""
    if node.action >= HOLD:
        return
    total, above = 0.0, 0.0
    for s in range(len(slices)):
        limit = knobs[CPU_LIMIT * len(slices) + s]
        if limit.value < math.inf:
            total += limit.value
            if limit.movable != 0 and slices[s].action != SAFE:
                above += max(limit.value - limit.floor, 0.0)
    if total <= node.limits_mcpu * (1.0 + _TINY) or above == 0.0:
        return
    part = max(node.limits_mcpu - (total - above), 0.0) / above
    for s in range(len(slices)):
        limit = knobs[CPU_LIMIT * len(slices) + s]
        if limit.movable != 0 and slices[s].action != SAFE and limit.floor < limit.value < math.inf:
            limit.value = limit.floor + part * (limit.value - limit.floor)
            slices[s].reasons |= _BUDGET
