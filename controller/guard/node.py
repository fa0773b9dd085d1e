"""Do the slices' knobs fit the node together? Last kernel of the guard; records as of `layout`."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from slicepilot.controller.contracts.charge import GUARD_MASK, InCharge
from slicepilot.controller.contracts.modes import Level
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.env.compiled import kernel
from slicepilot.env.knobs import CPU_LIMIT, EGRESS, NICE, NUM_KNOBS

from . import layout as at
from .layout import State

# How far knobs go back to the safe setting where they would deny a slice its share of the CPU, in so many steps.
_STEPS_BACK = 8
_ROUNDING = 1e-9
_FLOOR, _BUDGET, _SAFE_SETTING = Reason.FLOOR.bit, Reason.BUDGET.bit, Reason.SAFE_SETTING.bit
_NORMAL, _HOLD = int(Level.NORMAL), int(Level.HOLD)
_POLICY, _GUARD, _SAFE = map(int, InCharge)


@kernel()
def _level_back(knob: np.record, part: float) -> float:
    """A nice level moved by this part of the way back to the safe one, if it moves."""
    if knob.rules.movable == 0:
        return knob.chosen
    # Rounded upwards at halves, so that levels as far from the safe ones stay as far from each other.
    return knob.rules.safe + math.floor((1.0 - part) * (knob.chosen - knob.rules.safe) + 0.5)


@kernel()
def _least_demoted(state: State) -> float:
    """By how many levels of nice the policy puts a slice above its safe one, at least; 0 where it has no slice."""
    least = math.inf
    for s in range(len(state.slices)):
        knob = state.slices[s].knobs[NICE]
        if state.slices[s].tripped == 0:
            # One that never moves is where it would be under the safe setting, too.
            least = min(least, knob.chosen - knob.rules.safe if knob.rules.movable != 0 else 0.0)
    return least if least < math.inf else 0.0


@kernel()
def _hold_back(one: np.record, state: State, s: int) -> None:
    """No higher CPU limit or egress rate than the safe setting gives a slice: another waits for what it may take."""
    for k in (CPU_LIMIT, EGRESS):
        knob = one.knobs[k]
        most, chosen = knob.rules.safe, knob.chosen
        if k == EGRESS and most <= 0.0:
            most = math.inf
        if knob.rules.movable != 0 and (chosen > most or (k == EGRESS and chosen <= 0.0 and most < math.inf)):
            knob.chosen, one.protected = most, 1
            state.reasons[s] |= _FLOOR


@kernel()
def _keep_balance(state: State) -> None:
    """Give slices that have tripped, among others that follow the policy, what the safe setting of all would give them.

    Levels of nice say something beside those of others only: one level is the same factor of weight everywhere. So a
    slice that has tripped is as far from its safe level as the one is that the policy favours most, and has against
    each at least the weight that the safe setting gives it; and that one keeps against it what the safe setting gives
    it. Only where a level as low does not exist are the others held back. Where the policy favours nobody, the others
    move up together: what is no slice is not to gain by it.
    """
    nice_weight = state.node[0].rules.nice_weight
    ranks = nice_weight[0] != nice_weight[-1]  # between pods the nice of a process does not
    least, held_up = _least_demoted(state) if ranks else 0.0, False
    moved_up, offset = max(least, 0.0), min(least, 0.0)
    for s in range(len(state.slices)):
        one = state.slices[s]
        if one.tripped != 0:
            rules = one.knobs[NICE].rules
            offset = max(offset, rules.low - rules.safe) if rules.movable != 0 else 0.0
            held_up = held_up or one.trial.held_up != 0
    for s in range(len(state.slices)):
        one = state.slices[s]
        knob = one.knobs[NICE]
        if knob.rules.movable != 0:
            if one.tripped != 0:
                knob.chosen = knob.rules.safe + offset
            elif moved_up > 0.0:
                knob.chosen -= moved_up
                state.reasons[s] |= _FLOOR
            elif ranks and knob.chosen < knob.rules.safe + offset:
                knob.chosen, one.protected = knob.rules.safe + offset, 1
                state.reasons[s] |= _FLOOR
        if one.tripped == 0 and held_up:
            _hold_back(one, state, s)


@kernel()
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


@kernel()
def _scales(one: np.record, knob: np.record) -> bool:
    """Whether a limit makes room for others; the safe setting of a slice stays as it is."""
    return knob.rules.movable != 0 and one.course != at.TO_SAFE


@kernel()
def _keep_budget(state: State) -> None:
    """Scale what the chosen CPU limits of limited slices have above their floors until they fit the node."""
    slices, budget = state.slices, state.node[0].rules.limits_mcpu
    held, least = 0.0, 0.0
    for s in range(len(slices)):
        knob = slices[s].knobs[CPU_LIMIT]
        if knob.chosen < math.inf:
            held += knob.chosen
            least += min(knob.chosen, knob.rules.floor) if _scales(slices[s], knob) else knob.chosen
    if held <= budget * (1.0 + _ROUNDING):
        return
    part = max(budget - least, 0.0) / (held - least)
    for s in range(len(slices)):
        knob = slices[s].knobs[CPU_LIMIT]
        if _scales(slices[s], knob) and knob.rules.floor < knob.chosen < math.inf:
            knob.chosen = knob.rules.floor + part * (knob.chosen - knob.rules.floor)
            state.reasons[s] |= _BUDGET


@kernel()
def _tally(reasons: int, counts: npt.NDArray[np.int64]) -> None:
    """Count each reason in a mask."""
    mask, bit = reasons, 0
    while mask != 0:
        counts[bit] += mask & 1
        mask >>= 1
        bit += 1


@kernel()
def _charge(node: np.record, level: int, reasons: int, all_safe: bool) -> None:
    """Count who was in charge, given the reasons of the node and of all slices together.

    ``all_safe``: every slice has its safe setting.
    """
    charge = _SAFE
    if level <= _HOLD and not all_safe:
        charge = _GUARD if level == _HOLD or reasons & GUARD_MASK != 0 else _POLICY
    node.memory.charge = charge
    node.charges[charge] += 1
    if charge == _GUARD:
        _tally(reasons & GUARD_MASK, node.rules_in_charge)


@kernel()
def settle(
    wanted: npt.NDArray[np.float32],
    held: npt.NDArray[np.float32],
    level: int,
    node_reasons: int,
    state: State,
    out: npt.NDArray[np.float32],
) -> tuple[int, bool]:
    """What goes to the actuator, float32 (3, S, 1), in ``out``; returns AS_WANTED, AS_HELD or CHANGED.

    Also returns whether it has to be applied even if the decision is late. ``level`` is the guard's; ``node_reasons``
    go to each slice that does not get what was wanted.
    """
    urgent, tripped = level > _HOLD, False
    for s in range(len(state.slices)):
        one = state.slices[s]
        one.protected = 1 if one.course == at.TO_SAFE else 0
        tripped = tripped or one.tripped != 0
    if tripped and level <= _HOLD:
        _keep_balance(state)
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
            if value != held[k, s, 0]:
                as_held = False
                urgent = urgent or state.slices[s].protected != 0
    reasons, all_safe = int(node_reasons), True
    for s in range(len(state.slices)):
        reasons |= int(state.reasons[s])
        all_safe = all_safe and int(state.reasons[s]) & _SAFE_SETTING != 0
        _tally(int(state.reasons[s]), state.slices[s].counts)
    _tally(int(node_reasons), state.node[0].counts)
    _charge(state.node[0], level, reasons, all_safe)
    if as_wanted:
        return at.AS_WANTED, urgent
    return at.AS_HELD if as_held else at.CHANGED, urgent
