"""Rules that stop the policy: measurements that cannot be believed, decisions that are none, orders, lateness."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slicepilot.controller.contracts.reasons import Reason
from slicepilot.env.compiled import kernel
from slicepilot.env.knobs import NICE
from slicepilot.env.telemetry import SLICE_FIELDS

from .records import HOLD, SAFE, Records, act, asks_for_safe, start

_OFFERED, _CARRIED, _CPU = (SLICE_FIELDS.index(name) for name in ("offered_mbps", "carried_mbps", "cpu_use_mcpu"))
_MISSING, _STALE = Reason.TELEMETRY_MISSING.bit, Reason.TELEMETRY_STALE.bit
_FROZEN, _IMPLAUSIBLE = Reason.TELEMETRY_FROZEN.bit, Reason.TELEMETRY_IMPLAUSIBLE.bit
_SLICE_MISSING, _NOT_A_NUMBER = Reason.SLICE_MISSING.bit, Reason.NOT_A_NUMBER.bit
_POLICY_ERROR, _PAUSED, _ORDERED = Reason.POLICY_ERROR.bit, Reason.PAUSED.bit, Reason.ORDERED_SAFE.bit
_OVERRUN, _LATCHED = Reason.OVERRUN.bit, Reason.LATCHED.bit


class Figures(NamedTuple):
    """A tick's telemetry, float32: slices (8, S, 1), node (2, 1), age_s (1,); valid: bool (S, 1)."""

    slices: npt.NDArray[np.float32]
    node: npt.NDArray[np.float32]
    age_s: npt.NDArray[np.float32]
    valid: npt.NDArray[np.bool_]


@kernel
def measurements(figures: Figures, node: np.record, slices: Records, past: npt.NDArray[np.float32]) -> None:
    """A measurement that is missing, stale, frozen or impossible holds all knobs, and later gives the safe setting.

    If a single slice is not measured, or alone accounts for the impossible figures, only that slice is affected: a UPF
    that hangs has any delay.
    """
    doubts = _doubts(figures, node, slices, past)
    node.usable = doubts == 0
    if asks_for_safe(node.telemetry, doubts != 0, node.now_ns):
        act(node, SAFE, doubts)
    elif doubts != 0:
        act(node, HOLD, doubts)
    for s in range(len(slices)):
        slice_ = slices[s]
        if slice_.measured == 0:
            slice_.missing_reason = _IMPLAUSIBLE if slice_.valid != 0 else _SLICE_MISSING
        if asks_for_safe(slice_.missing, slice_.measured == 0, node.now_ns):
            act(slice_, SAFE, slice_.missing_reason)
        elif slice_.measured == 0:
            act(slice_, HOLD, slice_.missing_reason)


@kernel
def _doubts(figures: Figures, node: np.record, slices: Records, past: npt.NDArray[np.float32]) -> int:
    """Reasons not to believe a measurement; marks slices whose own figures cannot be as not measured."""
    doubts, age_s, some = 0, figures.age_s[0], False
    for s in range(len(slices)):
        slices[s].valid = slices[s].measured = figures.valid[s, 0]
        some = some or figures.valid[s, 0]
    if not some:
        doubts |= _MISSING
    if not age_s <= node.most_age_s:
        doubts |= _STALE
    node.same_ticks = node.same_ticks + 1 if _unchanged(figures, node, slices) else 0
    if node.same_ticks >= node.frozen_ticks:
        doubts |= _FROZEN
    if not (age_s >= 0.0 and _possible(node, slices)):
        return doubts | _IMPLAUSIBLE
    if doubts == 0:
        _average(node, slices, past)
    # Means over the whole window from the start, so that a first burst does not count as a rate: within one period a
    # full buffer may well leave faster than the uplink.
    carried, cpu, window = 0.0, 0.0, len(past)
    for s in range(len(slices)):
        carried += slices[s].carried
        cpu += slices[s].cpu
    if carried > node.most_carried_mbps * window:
        for s in range(len(slices)):
            # A UPF that makes packets of its own carries clearly more than it is offered.
            if slices[s].carried > node.most_gain * slices[s].offered:
                slices[s].measured = 0
                carried -= slices[s].carried
        if carried > node.most_carried_mbps * window:
            doubts |= _IMPLAUSIBLE
    if cpu > node.most_cpu_mcpu * window:
        doubts |= _IMPLAUSIBLE
    believed = False
    for s in range(len(slices)):
        believed = believed or slices[s].measured != 0
    return doubts if believed or not some else doubts | _IMPLAUSIBLE


@kernel
def _unchanged(figures: Figures, node: np.record, slices: Records) -> bool:
    """Whether a loaded node's figures equal those of the last tick; stores them. An idle node repeats its figures."""
    same, loaded = True, False
    for s in range(len(slices)):
        seen = slices[s].seen
        for row in range(len(seen)):
            value = figures.slices[row, s, 0]
            same = same and value == seen[row]
            seen[row] = value
        loaded = loaded or seen[_OFFERED] > 0.0
    for row in range(len(node.seen)):
        same = same and figures.node[row, 0] == node.seen[row]
        node.seen[row] = figures.node[row, 0]
    return same and loaded


@kernel
def _possible(node: np.record, slices: Records) -> bool:
    """Whether every figure is a number from 0 on, which no slice can change, and the node's are no more than can be."""
    for s in range(len(slices)):
        slice_ = slices[s]
        if slice_.valid == 0:
            continue
        for row in range(len(slice_.seen)):
            if not 0.0 <= slice_.seen[row] < math.inf:
                return False
            if slice_.seen[row] > node.most_of_slice[row]:
                slice_.measured = 0
    possible = True
    for row in range(len(node.seen)):
        possible = possible and 0.0 <= node.seen[row] <= node.most_of_node[row]
    return possible


@kernel
def _average(node: np.record, slices: Records, past: npt.NDArray[np.float32]) -> None:
    """Take one more tick into the sliding sums; a slice that is not measured begins anew."""
    slot = node.ticks % len(past)
    node.ticks += 1
    for s in range(len(slices)):
        slice_ = slices[s]
        if slice_.measured == 0:
            if slice_.samples > 0:
                slice_.samples, slice_.offered, slice_.carried, slice_.cpu = 0, 0.0, 0.0, 0.0
                past[:, s] = np.float32(0.0)
            continue
        old = past[slot, s]
        slice_.offered += slice_.seen[_OFFERED] - np.float64(old[0])
        slice_.carried += slice_.seen[_CARRIED] - np.float64(old[1])
        slice_.cpu += slice_.seen[_CPU] - np.float64(old[2])
        old[0], old[1], old[2] = slice_.seen[_OFFERED], slice_.seen[_CARRIED], slice_.seen[_CPU]
        slice_.samples = min(slice_.samples + 1, len(past))


@kernel
def decisions(node: np.record, knobs: Records) -> None:
    """A policy that fails, or whose decision is NaN, holds all knobs; after the patience the safe setting follows."""
    garbled = False
    for i in range(len(knobs)):
        wanted = knobs[i].wanted
        garbled = garbled or math.isnan(wanted) or (knobs[i].kind == NICE and math.isinf(wanted))
    failed = node.failed != 0
    garbled = garbled and not failed
    if asks_for_safe(node.not_a_number, garbled, node.now_ns):
        act(node, SAFE, _NOT_A_NUMBER if garbled else 0)
    elif garbled:
        act(node, HOLD, _NOT_A_NUMBER)
    if asks_for_safe(node.policy_error, failed, node.now_ns):
        act(node, SAFE, _POLICY_ERROR if failed else 0)
    elif failed:
        act(node, HOLD, _POLICY_ERROR)


@kernel
def orders(node: np.record) -> None:
    """An operator has ordered that knobs stay, or the safe setting."""
    if node.paused != 0:
        act(node, HOLD, _PAUSED)
    if node.ordered_safe != 0:
        act(node, SAFE, _ORDERED)


@kernel
def late_decisions(node: np.record) -> None:
    """Too many late decisions set the safe setting for a while, longer each time, and at last until an order."""
    overran, node.overran = node.overran, 0
    if node.latched == 0 and node.now_ns >= node.trip.until_ns:
        node.tripped = 0
    if overran != 0 and node.tripped == 0 and node.action < SAFE:
        start(node.trip, node.now_ns, 0)
        node.tripped = 1
        node.trip.count += 1
        node.latched = 1 if node.trip.count >= node.latch_after else 0
    if node.tripped != 0:
        act(node, SAFE, _OVERRUN | (_LATCHED if node.latched != 0 else 0))
