"""Do the slices' knobs fit the node together? Last kernel of the guard; records as of `layout`."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from ...env.knobs import CPU_LIMIT, NICE, NUM_KNOBS
from ..contracts.charge import GUARD_MASK, InCharge
from ..contracts.modes import Level
from ..contracts.reasons import Reason
from . import layout as at
from .layout import State

# How far knobs go back to the safe setting where they would deny a slice its share of the CPU, in so many steps.
_STEPS_BACK = 8
_ROUNDING = 1e-9
_FLOOR, _BUDGET = Reason.FLOOR.bit, Reason.BUDGET.bit
_NORMAL, _HOLD = int(Level.NORMAL), int(Level.HOLD)
_POLICY, _GUARD, _SAFE = map(int, InCharge)


@njit(cache=True, error_model="numpy")
def _level_back(knob: np.record, part: float) -> float:
    """A nice level moved by this part of the way back to the safe one, if it moves."""
    if knob.rules.movable == 0:
        return knob.chosen
    return np.rint(knob.chosen + part * (knob.rules.safe - knob.chosen))


@njit(cache=True, error_model="numpy")
def _keep_shares(state: State) -> None:
    """Move the chosen nice levels back to the safe ones, until every slice has its share of a busy node."""
    slices, rules = state.slices, state.node[0].rules
    nice_weight = rules.nice_weight
    for step in range(_STEPS_BACK + 1):
        part, total, fits = step / _STEPS_BACK, 0.0, True
        for s in range(len(slices)):
            level = int(_level_back(slices[s].knobs[NICE], part))
            total += slices[s].rules.base_weight * nice_weight[level + 20]
        for s in range(len(slices)):
            level = int(_level_back(slices[s].knobs[NICE], part))
            share = rules.node_mcpu * slices[s].rules.base_weight * nice_weight[level + 20] / total
            fits = fits and share >= slices[s].rules.share_floor_mcpu * (1.0 - _ROUNDING)
        if fits or step == _STEPS_BACK:
            for s in range(len(slices)):
                knob = slices[s].knobs[NICE]
                moved = _level_back(knob, part)
                if moved != knob.chosen:
                    knob.chosen = moved
                    state.reasons[s] |= _FLOOR
            return


@njit(cache=True, error_model="numpy")
def _keep_budget(state: State) -> None:
    """Scale what the chosen CPU limits of limited slices have above their floors until they fit the node."""
    slices, budget = state.slices, state.node[0].rules.limits_mcpu
    held, least = 0.0, 0.0
    for s in range(len(slices)):
        knob = slices[s].knobs[CPU_LIMIT]
        if knob.chosen < math.inf:
            held += knob.chosen
            least += min(knob.chosen, knob.rules.floor) if knob.rules.movable != 0 else knob.chosen
    if held <= budget * (1.0 + _ROUNDING):
        return
    part = max(budget - least, 0.0) / (held - least)
    for s in range(len(slices)):
        knob = slices[s].knobs[CPU_LIMIT]
        if knob.rules.movable != 0 and knob.rules.floor < knob.chosen < math.inf:
            knob.chosen = knob.rules.floor + part * (knob.chosen - knob.rules.floor)
            state.reasons[s] |= _BUDGET


@njit(cache=True, error_model="numpy")
def _tally(reasons: int, counts: npt.NDArray[np.int64]) -> None:
    """Count each reason in a mask."""
    mask, bit = reasons, 0
    while mask != 0:
        counts[bit] += mask & 1
        mask >>= 1
        bit += 1


@njit(cache=True, error_model="numpy")
def _charge(node: np.record, level: int, reasons: int) -> None:
    """Count who was in charge, given the reasons of the node and of all slices together."""
    charge = _SAFE
    if level <= _HOLD:
        charge = _GUARD if level == _HOLD or reasons & GUARD_MASK != 0 else _POLICY
    node.memory.charge = charge
    node.charges[charge] += 1
    if charge == _GUARD:
        _tally(reasons & GUARD_MASK, node.rules_in_charge)


@njit(cache=True, error_model="numpy")
def settle(
    wanted: npt.NDArray[np.float32],
    held: npt.NDArray[np.float32],
    level: int,
    node_reasons: int,
    state: State,
    out: npt.NDArray[np.float32],
) -> int:
    """What goes to the actuator, float32 (3, S, 1), in ``out``; returns AS_WANTED, AS_HELD or CHANGED.

    ``level`` is the guard's; ``node_reasons`` go to each slice that does not get what was wanted.
    """
    if level == _NORMAL:
        _keep_shares(state)
        _keep_budget(state)
    as_wanted, as_held = True, True
    for k in range(NUM_KNOBS):
        for s in range(len(state.slices)):
            knob = state.slices[s].knobs[k]
            out[k, s, 0] = knob.chosen
            value = out[k, s, 0]
            knob.memory.last_allowed = value
            if value != wanted[k, s, 0]:
                as_wanted = False
                state.reasons[s] |= node_reasons
            as_held = as_held and value == held[k, s, 0]
    reasons = int(node_reasons)
    for s in range(len(state.slices)):
        reasons |= int(state.reasons[s])
        _tally(int(state.reasons[s]), state.slices[s].counts)
    _tally(int(node_reasons), state.node[0].counts)
    _charge(state.node[0], level, reasons)
    if as_wanted:
        return at.AS_WANTED
    return at.AS_HELD if as_held else at.CHANGED
