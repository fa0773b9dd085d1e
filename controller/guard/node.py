"""Do the slices' knobs fit the node together? Last kernel of the guard, as `guard_telemetry`."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from ...env.knobs import CPU_LIMIT, NICE, NUM_KNOBS
from ..contracts.reasons import Reason
from . import layout as at

# How far knobs go back to the safe setting where they would deny a slice its share of the CPU, in so many steps.
_STEPS_BACK = 8
_ROUNDING = 1e-9
_FLOOR, _BUDGET = Reason.FLOOR.bit, Reason.BUDGET.bit


@njit(cache=True, error_model="numpy")
def _keep_shares(
    nices: np.ndarray,
    safe: np.ndarray,
    slice_rules: np.ndarray,
    rules: np.ndarray,
    nice_weight: np.ndarray,
    reasons: np.ndarray,
) -> None:
    """Move nice levels (S,) back to the safe ones, until every slice has its share of a busy node."""
    for step in range(_STEPS_BACK + 1):
        part, total, fits = step / _STEPS_BACK, 0.0, True
        for s in range(len(nices)):
            level = int(np.rint(nices[s] + part * (safe[s] - nices[s])))
            total += slice_rules[at.BASE_WEIGHT, s] * nice_weight[level + 20]
        for s in range(len(nices)):
            level = int(np.rint(nices[s] + part * (safe[s] - nices[s])))
            share = rules[at.NODE_MCPU] * slice_rules[at.BASE_WEIGHT, s] * nice_weight[level + 20] / total
            fits = fits and share >= slice_rules[at.SHARE_FLOOR, s] * (1.0 - _ROUNDING)
        if fits or step == _STEPS_BACK:
            for s in range(len(nices)):
                level = np.rint(nices[s] + part * (safe[s] - nices[s]))
                if level != nices[s]:
                    nices[s] = level
                    reasons[s] |= _FLOOR
            return


@njit(cache=True, error_model="numpy")
def _keep_budget(limits: np.ndarray, floors: np.ndarray, budget: float, reasons: np.ndarray) -> None:
    """Scale what the limits (S,) of limited slices have above their floors until they fit the node."""
    held, least = 0.0, 0.0
    for s in range(len(limits)):
        if limits[s] < math.inf:
            held += limits[s]
            least += min(limits[s], floors[s])
    if held <= budget * (1.0 + _ROUNDING):
        return
    part = max(budget - least, 0.0) / (held - least)
    for s in range(len(limits)):
        if floors[s] < limits[s] < math.inf:
            limits[s] = floors[s] + part * (limits[s] - floors[s])
            reasons[s] |= _BUDGET


@njit(cache=True, error_model="numpy")
def _tally(reasons: np.ndarray, node_reasons: int, counts: np.ndarray) -> None:
    num_slices = len(reasons)
    for s in range(num_slices + 1):
        mask = np.int64(reasons[s]) if s < num_slices else node_reasons
        bit = 0
        while mask != 0:
            counts[bit, s] += mask & 1
            mask >>= 1
            bit += 1


@njit(cache=True, error_model="numpy")
def _write(
    k: int,
    wanted: np.ndarray,
    held: np.ndarray,
    cause: int,
    chosen: np.ndarray,
    allowed: np.ndarray,
    reasons: np.ndarray,
    out: np.ndarray,
) -> tuple[bool, bool]:
    """Write one knob of all slices; whether it is as wanted, and as held."""
    as_wanted, as_held = True, True
    for s in range(len(chosen)):
        out[k, s, 0] = chosen[s]
        allowed[s] = out[k, s, 0]
        if out[k, s, 0] != wanted[k, s, 0]:
            as_wanted = False
            reasons[s] |= cause
        as_held = as_held and out[k, s, 0] == held[k, s, 0]
    return as_wanted, as_held


@njit(cache=True, error_model="numpy")
def settle(
    wanted: np.ndarray,
    held: np.ndarray,
    free: bool,
    node_reasons: int,
    out: np.ndarray,
    rules: np.ndarray,
    slice_rules: np.ndarray,
    move_rules: np.ndarray,
    nice_weight: np.ndarray,
    values: np.ndarray,
    counts: np.ndarray,
    chosen: np.ndarray,
    reasons: np.ndarray,
) -> int:
    """What goes to the actuator, float32 (3, S, 1), in ``out``; returns AS_WANTED, AS_HELD or CHANGED.

    ``free``: some slices follow the policy; ``node_reasons`` go to each slice that does not get its wish.
    """
    if free:
        _keep_shares(chosen[NICE], rules[at.SAFE_AT, NICE], slice_rules, move_rules, nice_weight, reasons)
        _keep_budget(chosen[CPU_LIMIT], rules[at.FLOOR_AT, CPU_LIMIT], move_rules[at.LIMITS_MCPU], reasons)
    as_wanted, as_held = True, True
    for k in range(NUM_KNOBS):
        same_wish, same_held = _write(
            k, wanted, held, node_reasons, chosen[k], values[at.LAST_ALLOWED, k], reasons, out
        )
        as_wanted, as_held = as_wanted and same_wish, as_held and same_held
    _tally(reasons, node_reasons, counts)
    if as_wanted:
        return at.AS_WANTED
    return at.AS_HELD if as_held else at.CHANGED
