"""What a trip leads to: the safe setting, for longer each time, and for good at some time; records as of `layout`.

A slice trips when a service floor of it is broken (`floors`), and has its safe setting then; the others follow the
policy (`node` keeps the balance between them). The node trips when too many decisions are late.
"""

from __future__ import annotations

import math

import numpy as np

from slicepilot.env.compiled import kernel
from slicepilot.env.telemetry import SLICE_FIELDS

from . import layout as at
from .capacity import held_up, out_of_reach
from .floors import below, excuse, forget, nobody_could, policy_again, try_safe
from .layout import Measured, State

_P99 = SLICE_FIELDS.index("delay_p99_us")


@kernel()
def _trip(trip: np.record, rules: np.record, now: int) -> None:
    """Safe for a while, and for longer each time; ``rules`` are the node's."""
    trip.safe_before_ns, trip.count_before = trip.safe_until_ns, trip.count
    if now - trip.safe_until_ns > rules.forget_trips_ns:
        trip.count = 0
    hold = min(rules.safe_ns * 2.0 ** min(trip.count, 40), rules.most_safe_ns)
    trip.safe_until_ns = now + math.ceil(hold)


@kernel()
def _count(trip: np.record, rules: np.record) -> None:
    """The trip in force counts; at some time it is for good."""
    trip.count += 1
    if trip.count >= rules.latch_after:
        trip.latched = 1


@kernel()
def _in_force(one: np.record, now: int) -> bool:
    """Whether a slice has its safe setting for a trip."""
    return now < one.trip.safe_until_ns or one.trip.latched != 0 or one.trial.counts_at_ns != at.NEVER_NS


@kernel()
def _end(one: np.record) -> None:
    """No trip of a slice is in force any more."""
    one.trial.on, one.trial.held_up = 0, 0
    for k in range(at.FLOORS):
        one.floors[k].tripped = 0


# What calls another file has no cache of its own, which would not notice a change there: the cache of a whole tick does
# (`work.judge_of`).
@kernel(cache=False)
def _withdrawn(node: np.record, one: np.record, delay_us: float, sound: bool, now: int) -> bool:
    """Whether a slice's trip turns out to be nobody's fault; then it is as if it had not been.

    The safe setting is on trial as long as the trip lasts; if it stands by then, the trip counts. So it does at once
    when the trial cannot be relied on any more (not ``sound``).
    """
    trip, trial = one.trip, one.trial
    if trial.on == 0:
        return False
    if sound and nobody_could(node, one, delay_us, now):
        trip.safe_until_ns, trip.count, trial.counts_at_ns = trip.safe_before_ns, trip.count_before, at.NEVER_NS
        return True
    over = now >= trial.counts_at_ns and now >= trip.safe_until_ns
    if trial.counts_at_ns != at.NEVER_NS and (over or not sound):
        trial.counts_at_ns = at.NEVER_NS
        _count(trip, node.rules)
    if not sound or trip.latched != 0:
        trial.on = 0
    return False


@kernel(cache=False)
def _goes_on(node: np.record, one: np.record, delay_us: float, usable: bool, sound: bool, now: int) -> bool:
    """Whether an old trip of a slice asks for its safe setting."""
    if _in_force(one, now) and (usable or not sound) and _withdrawn(node, one, delay_us, sound, now):
        _end(one)
        policy_again(one, node.rules, now)
        return False
    in_force = _in_force(one, now)
    if not in_force:
        if one.trial.on != 0:
            policy_again(one, node.rules, now)
        _end(one)
    if not sound or (in_force and one.trial.on == 0):
        forget(one)
    return in_force


@kernel(cache=False)
def slices_tripped(measured: Measured, state: State, usable: bool, sound: bool, now: int) -> None:
    """Say of each slice whether a trip, an old one or one of this tick, asks for its safe setting.

    Args:
        usable: the measurement can be believed.
        sound: the policy is in control, and the whole node is not safe anyhow.
    """
    node = state.node[0]
    for s in range(len(state.slices)):
        one = state.slices[s]
        measured_well = measured.valid[s, 0] and one.doubted == 0
        delay_us = float(measured.slices[_P99, s, 0]) if measured_well else math.nan
        one.excused = 0
        one.tripped = 1 if _goes_on(node, one, delay_us, usable, sound, now) else 0
        if one.tripped == 0 and usable and sound and below(node, one, delay_us, now):
            trips = one.floors[at.RATE].tripped == 0 or not out_of_reach(state, s) or excuse(node, one, now)
            if trips:
                try_safe(node.rules, one, delay_us, now)
                _trip(one.trip, node.rules, now)
                one.tripped = 1
        # Arrays are dear to hand on: only where it matters.
        if one.tripped != 0 and usable and one.trial.held_up == 0 and held_up(measured, state, s):
            one.trial.held_up = 1


@kernel()
def node_tripped(node: np.record, elsewise_safe: bool, now: int) -> bool:
    """Whether a trip for late decisions asks for the safe setting of all slices."""
    memory, trip = node.memory, node.trip
    in_force = now < trip.safe_until_ns or trip.latched != 0
    if not in_force:
        memory.by_overrun = 0
    overran, memory.overran = memory.overran, 0
    if elsewise_safe or in_force or overran == 0:
        return in_force
    memory.by_overrun = 1
    _trip(trip, node.rules, now)
    _count(trip, node.rules)
    return True
