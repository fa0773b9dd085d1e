"""Whose fault is a broken service floor? Part of the guard's second kernel; records as of `layout`.

A floor that is broken for too long is a trip of its slice, which has its safe setting at once. From then on that is on
trial: how the floor is kept (what the slice gets of what the floor asks for) is averaged over the last seconds in which
the policy was in charge of the slice, and likewise for the safe setting. Where that does no better, nobody could have
kept the floor: the policy decides again, and the floor is *spared*, which lowers it to a share of what the safe setting
did. Means of all that was seen, and not of the moments in which the floor was broken: those would always be better
later.

A model saves trials. Where the floors together need clearly more CPU, or uplink, than there is, and the slice has no
less than the safe setting would give it, its floor is spared without one.

A floor asks for nothing while next to nothing is offered: see `SlaFloor.least_mbps`.
"""

from __future__ import annotations

import math

import numpy as np

from slicepilot.env.compiled import kernel

from . import layout as at
from .capacity import asked_mbps

_LEAST_MBPS = 1e-3  # less than this is missing by rounding
_KEPT_WELL = 0.9  # of what its floor asks for: a slice that gets less is likely to trip
_REMEMBERED = 0.5  # of what is known of the safe setting, from one trial to the next


@kernel()
def forget(one: np.record) -> None:
    """Begin to watch a slice's floors anew."""
    for k in range(at.FLOORS):
        one.floors[k].since_ns = at.NEVER_NS


@kernel()
def _broken(one: np.record, delay_us: float, k: int, bar: float) -> bool:
    """Whether a slice is served less than ``bar`` times what its floor asks for."""
    if math.isnan(delay_us):
        return False
    if k == at.DELAY:
        return delay_us > one.rules.most_delay_us / bar
    memory = one.memory
    return memory.carried_sum < (asked_mbps(one) * bar - _LEAST_MBPS) * memory.samples


@kernel()
def _lasts(one: np.record, rules: np.record, delay_us: float, k: int, bar: float, now: int) -> bool:
    """Whether a floor has been broken for too long, of a slice that has offered enough for a window."""
    floor = one.floors[k]
    if one.memory.asking_since_ns == at.NEVER_NS or not _broken(one, delay_us, k, bar):
        floor.since_ns = at.NEVER_NS
        return False
    if floor.since_ns == at.NEVER_NS:
        floor.since_ns = now
    asked = now - one.memory.asking_since_ns >= rules.settle_ns
    return asked and now - floor.since_ns >= one.rules.floor_patience_ns


@kernel()
def _got(one: np.record, delay_us: float, k: int) -> tuple[float, float]:
    """What a slice gets now of what its floor asks for, no more than all of it, and that."""
    if math.isnan(delay_us):
        return 0.0, 0.0
    if k == at.DELAY:
        most = one.rules.most_delay_us
        return (1.0 if delay_us <= most else most / delay_us), 1.0
    asked = asked_mbps(one)
    return min(one.memory.carried_sum / max(one.memory.samples, 1), asked), asked


@kernel()
def _kept(got: float, asked: float) -> float:
    return got / asked if asked > 0.0 else 1.0


@kernel()
def _spare(floor: np.record, node: np.record, kept: float, now: int) -> None:
    """Lower a floor for a while, given how it was kept when nobody could; longer each time."""
    rules = node.rules
    if now - floor.spared_until_ns > rules.forget_trips_ns:
        floor.spared = 0
    spare = min(rules.spare_ns * 2.0 ** min(floor.spared, 40), rules.most_spare_ns)
    floor.spared_until_ns = now + math.ceil(spare)
    floor.again_from_ns = now + math.ceil(max(rules.spare_ns, 0.25 * spare))
    floor.spared += 1
    floor.bar = min(rules.tolerance_ratio * kept, 1.0)
    floor.spared_load_mbps, floor.spared_idle_ratio = node.memory.load_mbps, node.memory.idle_ratio
    floor.since_ns = at.NEVER_NS


@kernel()
def _is_spared(floor: np.record, node: np.record, now: int) -> bool:
    """Whether a floor is lowered now; no longer when the load has eased."""
    if now >= floor.spared_until_ns:
        return False
    rules, memory = node.rules, node.memory
    eased = memory.load_mbps < rules.eased_load_ratio * floor.spared_load_mbps
    eased = eased or memory.idle_ratio > floor.spared_idle_ratio + rules.eased_idle_ratio
    if eased and now >= floor.again_from_ns:
        floor.spared_until_ns = now
        return False
    return True


@kernel()
def below(node: np.record, one: np.record, delay_us: float, now: int) -> bool:
    """Whether a slice has been below a floor for longer than it may be, under the policy; marks which as tripped.

    ``delay_us``: its p99; NaN where it is not measured, as in all that follows.
    """
    rules, tripped = node.rules, False
    fading, settled = rules.fading, now >= one.trial.settled_at_ns
    for k in range(at.FLOORS):
        floor = one.floors[k]
        if settled:
            got, asked = _got(one, delay_us, k)
            floor.policy_got += fading * (got - floor.policy_got)
            floor.policy_asked += fading * (asked - floor.policy_asked)
        floor.tripped, bar = 0, 1.0
        if _is_spared(floor, node, now):
            bar = floor.bar
            if _broken(one, delay_us, k, 1.0):
                one.excused = 1
        if _lasts(one, rules, delay_us, k, bar, now):
            floor.tripped, tripped = 1, True
    return tripped


@kernel()
def excuse(node: np.record, one: np.record, now: int) -> bool:
    """Spare the rate floor of a slice, which no division of the node keeps; returns whether another has tripped."""
    floor = one.floors[at.RATE]
    _spare(floor, node, _kept(floor.policy_got, floor.policy_asked), now)
    floor.tripped, one.excused = 0, 1
    return one.floors[at.DELAY].tripped != 0


@kernel()
def try_safe(rules: np.record, one: np.record, delay_us: float, now: int) -> None:
    """Prepare the trial of the safe setting, for a slice that has tripped; keeps what was seen when it did."""
    for k in range(at.FLOORS):
        floor = one.floors[k]
        # One that may be next is tried along with it: its own trial can be saved.
        due = floor.since_ns != at.NEVER_NS and 2.0 * (now - floor.since_ns) >= one.rules.floor_patience_ns
        due = due or _kept(floor.policy_got, floor.policy_asked) < _KEPT_WELL
        floor.failed, floor.trial_ticks, floor.compared = 0, 0, 1 if due else floor.tripped
        if floor.compared != 0:
            _, floor.load = _got(one, delay_us, k)
            floor.safe_got, floor.safe_asked = _REMEMBERED * floor.safe_got, _REMEMBERED * floor.safe_asked
    trial, told, memory = one.trial, one.told, one.memory
    trial.on = 1
    trial.settled_at_ns = now + math.ceil(rules.settle_ns)
    trial.counts_at_ns = now + math.ceil(rules.settle_ns + one.rules.trial_patience_ns + 2.0 * rules.period_ns)
    told.began_ns, told.floor = now, at.RATE if one.floors[at.RATE].tripped != 0 else at.DELAY
    told.offered_mbps = memory.offered_sum / max(memory.samples, 1)
    told.carried_mbps = memory.carried_sum / max(memory.samples, 1)
    told.delay_p99_us, told.floor_mbps = delay_us, asked_mbps(one)
    forget(one)


@kernel()
def nobody_could(node: np.record, one: np.record, delay_us: float, now: int) -> bool:
    """Whether the safe setting has failed all floors that were the reason for the slice's trip in force.

    It fails one when it keeps it no better than the policy did, after it has been measured for long enough with half
    the load at least: without there is nothing to compare.
    """
    if now < one.trial.settled_at_ns:
        return False
    rules, all_failed = node.rules, True
    for k in range(at.FLOORS):
        floor = one.floors[k]
        if floor.compared == 0 or floor.failed != 0:
            continue
        got, asked = _got(one, delay_us, k)
        floor.safe_got += rules.fading * (got - floor.safe_got)
        floor.safe_asked += rules.fading * (asked - floor.safe_asked)
        floor.trial_ticks += 1 if asked > 0.0 and 2.0 * asked >= floor.load else 0
        if floor.trial_ticks * rules.period_ns >= one.rules.trial_patience_ns:
            safe = _kept(floor.safe_got, floor.safe_asked)
            short = 1.0 - _kept(floor.policy_got, floor.policy_asked)
            if 1.0 - safe >= rules.short_ratio * short - rules.better_share:
                floor.failed = 1
                _spare(floor, node, safe, now)
        all_failed = all_failed and (floor.tripped == 0 or floor.failed != 0)
    return all_failed


@kernel()
def policy_again(one: np.record, rules: np.record, now: int) -> None:
    """The policy decides on a slice again, and its floors are watched anew; ``rules`` are the node's."""
    one.trial.settled_at_ns = now + math.ceil(rules.settle_ns)
    forget(one)
