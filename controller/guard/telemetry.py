"""Can a measurement be believed? First kernel of the guard: arrays in and out, their rows named in `guard_layout`."""

from __future__ import annotations

import numpy as np
from numba import njit

from ...env.telemetry import SLICE_FIELDS
from ..contracts.reasons import Reason
from . import layout as at

_OFFERED, _CARRIED, _CPU = (SLICE_FIELDS.index(name) for name in ("offered_mbps", "carried_mbps", "cpu_use_mcpu"))
_ZERO = np.float32(0.0)
_MISSING, _STALE = Reason.TELEMETRY_MISSING.bit, Reason.TELEMETRY_STALE.bit
_FROZEN, _IMPLAUSIBLE = Reason.TELEMETRY_FROZEN.bit, Reason.TELEMETRY_IMPLAUSIBLE.bit


@njit(cache=True, error_model="numpy")
def _unchanged(slices: np.ndarray, node: np.ndarray, seen: np.ndarray, seen_node: np.ndarray) -> bool:
    """Whether a loaded node's figures are bit for bit the last ones; remembers them. An idle node repeats itself."""
    same, loaded = True, False
    for s in range(slices.shape[1]):
        loaded = loaded or slices[_OFFERED, s, 0] > _ZERO
        for row in range(len(slices)):
            value = slices[row, s, 0]
            same = same and value == seen[row, s]
            seen[row, s] = value
    for row in range(len(node)):
        same = same and node[row, 0] == seen_node[row]
        seen_node[row] = node[row, 0]
    return same and loaded


@njit(cache=True, error_model="numpy")
def _possible(slices: np.ndarray, node: np.ndarray, valid: np.ndarray, most: np.ndarray) -> bool:
    """Whether every figure is a number between 0 and the most it can be."""
    rows = len(slices)
    for s in range(slices.shape[1]):
        if valid[s, 0]:
            for row in range(rows):
                if not (_ZERO <= slices[row, s, 0] <= most[row]):
                    return False
    possible = True
    for row in range(len(node)):
        possible = possible and _ZERO <= node[row, 0] <= most[rows + row]
    return possible


@njit(cache=True, error_model="numpy")
def _average(
    slices: np.ndarray, valid: np.ndarray, slot: int, service: np.ndarray, sums: np.ndarray, past: np.ndarray
) -> None:
    """Take one more tick into the sliding sums; a slice that is not measured begins anew."""
    window = len(past)
    for s in range(slices.shape[1]):
        if not valid[s, 0]:
            if service[at.SAMPLES, s] > 0:
                past[:, :, s], sums[:, s], service[at.SAMPLES, s] = _ZERO, 0.0, 0
            continue
        for row, field in ((at.OFFERED_SUM, _OFFERED), (at.CARRIED_SUM, _CARRIED), (at.CPU_SUM, _CPU)):
            sums[row, s] += slices[field, s, 0] - np.float64(past[slot, row, s])
            past[slot, row, s] = slices[field, s, 0]
        service[at.SAMPLES, s] = min(service[at.SAMPLES, s] + 1, window)


@njit(cache=True, error_model="numpy")
def doubts(
    slices: np.ndarray,
    node: np.ndarray,
    age_s: np.ndarray,
    valid: np.ndarray,
    most: np.ndarray,
    rules: np.ndarray,
    memory: np.ndarray,
    service: np.ndarray,
    sums: np.ndarray,
    past: np.ndarray,
    seen: np.ndarray,
    seen_node: np.ndarray,
) -> int:
    """Reasons not to believe a measurement, 0 if there are none; what can be believed is averaged.

    ``most``: what each figure can be, in the order of telemetry's rows.
    """
    found, measured = 0, False
    for s in range(len(valid)):
        measured = measured or valid[s, 0]
    if not measured:
        found |= _MISSING
    if not age_s[0] <= rules[at.MOST_AGE_S]:
        found |= _STALE
    memory[at.SAME_TICKS] = memory[at.SAME_TICKS] + 1 if _unchanged(slices, node, seen, seen_node) else 0
    if memory[at.SAME_TICKS] >= rules[at.FROZEN_TICKS]:
        found |= _FROZEN
    if not (age_s[0] >= _ZERO and _possible(slices, node, valid, most)):
        return found | _IMPLAUSIBLE
    if found == 0:
        _average(slices, valid, memory[at.TICKS] % len(past), service, sums, past)
        memory[at.TICKS] += 1
    # Means over the whole window from the start, so that a first burst does not count as a rate.
    carried, cpu = 0.0, 0.0
    for s in range(len(valid)):
        carried += sums[at.CARRIED_SUM, s]
        cpu += sums[at.CPU_SUM, s]
    if carried > rules[at.MOST_CARRIED] * len(past) or cpu > rules[at.MOST_CPU] * len(past):
        found |= _IMPLAUSIBLE
    return found
