"""Can a measurement be believed? First kernel of the guard; `slicepilot.controller.guard.layout` has its records."""

from __future__ import annotations

import numpy as np

from slicepilot.controller.contracts.reasons import Reason
from slicepilot.env.compiled import kernel
from slicepilot.env.telemetry import SLICE_FIELDS

from .layout import Measured, State

_OFFERED, _CARRIED, _CPU = (SLICE_FIELDS.index(name) for name in ("offered_mbps", "carried_mbps", "cpu_use_mcpu"))
_ZERO = np.float32(0.0)
_MISSING, _STALE = Reason.TELEMETRY_MISSING.bit, Reason.TELEMETRY_STALE.bit
_FROZEN, _IMPLAUSIBLE = Reason.TELEMETRY_FROZEN.bit, Reason.TELEMETRY_IMPLAUSIBLE.bit


@kernel()
def _unchanged(measured: Measured, state: State) -> bool:
    """Whether a loaded node's figures are bit for bit the last ones; remembers them. An idle node repeats itself."""
    same, loaded = True, False
    for s in range(len(state.slices)):
        loaded = loaded or measured.slices[_OFFERED, s, 0] > _ZERO
        seen = state.slices[s].seen
        for row in range(len(measured.slices)):
            value = measured.slices[row, s, 0]
            same = same and value == seen[row]
            seen[row] = value
    seen_node = state.node[0].seen
    for row in range(len(measured.node)):
        same = same and measured.node[row, 0] == seen_node[row]
        seen_node[row] = measured.node[row, 0]
    return same and loaded


@kernel()
def _possible(measured: Measured, state: State) -> bool:
    """Whether every figure is a number from 0 on, and the node's are no more than they can be.

    A slice's own that is more is its own matter, and marked (``doubted``): a UPF that hangs makes its delay as long as
    it likes. What is no number, or negative, no slice can bring about: it is the measurement that is broken.
    """
    rules = state.node[0].rules
    for s in range(len(measured.valid)):
        one = state.slices[s]
        one.doubted = 0
        if measured.valid[s, 0]:
            for row in range(len(measured.slices)):
                value = measured.slices[row, s, 0]
                if not _ZERO <= value < np.inf:
                    return False
                if value > rules.most_of_slice[row]:
                    one.doubted = 1
    possible = True
    for row in range(len(measured.node)):
        possible = possible and _ZERO <= measured.node[row, 0] <= rules.most_of_node[row]
    return possible


@kernel()
def _average(measured: Measured, state: State) -> None:
    """Take one more tick into the sliding sums; a slice that is not measured, or doubted so far, begins anew."""
    window = len(state.past)
    slot = state.node[0].memory.ticks % window
    for s in range(len(state.slices)):
        memory = state.slices[s].memory
        if not measured.valid[s, 0] or state.slices[s].doubted != 0:
            if memory.samples > 0:
                memory.offered_sum, memory.carried_sum, memory.cpu_sum, memory.samples = 0.0, 0.0, 0.0, 0
                for tick in range(window):
                    gone = state.past[tick, s]
                    gone.offered_mbps, gone.carried_mbps, gone.cpu_mcpu = _ZERO, _ZERO, _ZERO
            continue
        past = state.past[slot, s]
        offered, carried = measured.slices[_OFFERED, s, 0], measured.slices[_CARRIED, s, 0]
        cpu = measured.slices[_CPU, s, 0]
        memory.offered_sum += offered - np.float64(past.offered_mbps)
        memory.carried_sum += carried - np.float64(past.carried_mbps)
        memory.cpu_sum += cpu - np.float64(past.cpu_mcpu)
        past.offered_mbps, past.carried_mbps, past.cpu_mcpu = offered, carried, cpu
        memory.samples = min(memory.samples + 1, window)
    state.node[0].memory.ticks += 1


@kernel()
def _explained(carried: float, state: State) -> bool:
    """Whether too much is carried by slices that carry clearly more than they are offered; marks those.

    A UPF that makes packets of its own does, over the whole window, and all that the others carry was offered to them.
    """
    rules = state.node[0].rules
    for s in range(len(state.slices)):
        one = state.slices[s]
        if one.memory.carried_sum > rules.most_gain * one.memory.offered_sum:
            one.doubted = 1
            carried -= one.memory.carried_sum
    return carried <= rules.most_carried_mbps * len(state.past)


@kernel()
def doubts(measured: Measured, state: State) -> int:
    """Reasons not to believe a measurement, 0 if there are none; what can be believed is averaged.

    Where one slice alone accounts for what cannot be, it is ``doubted``, and the rest is believed.
    """
    node = state.node[0]
    rules, memory = node.rules, node.memory
    found, seen = 0, False
    for s in range(len(measured.valid)):
        seen = seen or measured.valid[s, 0]
    if not seen:
        found |= _MISSING
    if not measured.age_s[0] <= rules.most_age_s:
        found |= _STALE
    memory.same_ticks = memory.same_ticks + 1 if _unchanged(measured, state) else 0
    if memory.same_ticks >= rules.frozen_ticks:
        found |= _FROZEN
    if not (measured.age_s[0] >= _ZERO and _possible(measured, state)):
        return found | _IMPLAUSIBLE
    if found == 0:
        _average(measured, state)
    # Means over the whole window from the start, so that a first burst does not count as a rate.
    carried, cpu = 0.0, 0.0
    for s in range(len(state.slices)):
        carried += state.slices[s].memory.carried_sum
        cpu += state.slices[s].memory.cpu_sum
    window = len(state.past)
    if carried > rules.most_carried_mbps * window and not _explained(carried, state):
        found |= _IMPLAUSIBLE
    if cpu > rules.most_cpu_mcpu * window:
        found |= _IMPLAUSIBLE
    believed = False
    for s in range(len(measured.valid)):
        believed = believed or (measured.valid[s, 0] and state.slices[s].doubted == 0)
    if seen and not believed:
        found |= _IMPLAUSIBLE
    return found
