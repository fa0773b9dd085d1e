"""Rules for a slice that is served too little: its safe setting, and what that takes among other slices."""

from __future__ import annotations

import math

import numpy as np

from slicepilot.controller.contracts.reasons import Reason
from slicepilot.env.compiled import kernel
from slicepilot.env.knobs import CPU_LIMIT, EGRESS, NICE
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS

from .records import DELAY, NEVER_NS, RATE, SAFE, Records, act, start

_P99, _WAIT = (SLICE_FIELDS.index(name) for name in ("delay_p99_us", "runqueue_delay_us"))
_UPLINK = NODE_FIELDS.index("uplink_use_ratio")
_FLOOR_BIT, _SLA_FLOOR, _TRIAL = Reason.FLOOR.bit, Reason.SLA_FLOOR.bit, Reason.FLOOR_TRIAL.bit
_LATCHED, _INFEASIBLE = Reason.LATCHED.bit, Reason.FLOOR_INFEASIBLE.bit
_ROUNDING = 1e-9
_LEAST_MBPS = 1e-3  # less than this is missing by rounding
CLEARLY = 1.1
"""The safe setting has to exceed a floor by this factor: where it is just met, by chance, nothing is won."""
# A socket buffer of 212,992 bytes (net.core.rmem_default) is full after that at 850 Mbit/s: a slice that waits less for
# a CPU loses nothing by it.
_LONG_WAIT_US = 2e3
_SHARE = 0.95  # of its share of the CPU that a slice has when it is said to have it
_FULL = 0.9  # of the uplink's rate


@kernel()
def service_floors(node: np.record, slices: Records, knobs: Records) -> None:
    """A slice whose service floor stays broken for ``patience_s`` under the policy gets its safe setting; if the floor
    stays broken under that as well, the node cannot keep it, and the slice goes back to the policy with its floor
    lowered to half of what the safe setting achieved, for ``spare_s``.

    Otherwise the trip counts: the safe setting stays for `Safe.hold_s`, twice as long at each further trip, and at last
    until an order. The lowered floor is a floor as any other, which the policy has to keep; ``spare_s`` doubles, too.
    """
    watching = node.floors != 0 and node.usable != 0 and node.in_control != 0 and node.action < SAFE
    for s in range(len(slices)):
        one = slices[s]
        if one.tripped != 0 and one.latched == 0 and node.now_ns >= one.trip.until_ns:
            one.trip.count += 1
            if one.trip.count >= node.latch_after:
                one.latched = 1
            else:
                _change(one, node, 0)
        if watching and one.measured != 0:
            one.waits_us += min(node.period_ns / node.window_ns, 1.0) * (one.seen[_WAIT] - one.waits_us)
            _watch(one, node)
        else:
            one.asking_since_ns = NEVER_NS
            _forget(one)
        if one.tripped != 0:
            if node.usable != 0 and one.starved == 0 and _starved(one, node, knobs[s].safe):
                one.starved = 1
            state = _LATCHED if one.latched != 0 else (_TRIAL if node.trials != 0 else 0)
            act(one, SAFE, _SLA_FLOOR | state)


@kernel()
def _watch(one: np.record, node: np.record) -> None:
    """Look whether a slice's floors are kept, by the policy or by the safe setting, and what follows."""
    now_ns, safe = node.now_ns, one.tripped != 0
    if one.samples == 0 or one.offered < one.least_mbps * one.samples * (1.0 - _ROUNDING):
        one.asking_since_ns = NEVER_NS
    elif one.asking_since_ns == NEVER_NS:
        one.asking_since_ns = now_ns
    if one.asking_since_ns == NEVER_NS or now_ns < one.settled_ns or one.latched != 0:
        _forget(one)
        return
    proven = now_ns - one.asking_since_ns >= node.window_ns
    patience_ns = one.trial_patience_ns if safe else one.patience_ns
    for k in (RATE, DELAY):
        floor = one.floors[k]
        if not safe and now_ns >= floor.lowered.until_ns:
            floor.bar = 1.0
        bar = floor.bar
        if safe:
            bar *= one.clearly if k == RATE else CLEARLY
        if not _broken(one, k, bar):
            floor.broken_since_ns = NEVER_NS
        elif floor.broken_since_ns == NEVER_NS:
            floor.broken_since_ns = now_ns
        lasts = floor.broken_since_ns != NEVER_NS and now_ns - floor.broken_since_ns >= patience_ns
        if proven and lasts and not safe:
            _trip(one, node, k)
            return
        if proven and lasts and k == one.floor and node.trials != 0:
            _give_back(one, node, k)
        if one.tripped == 0 and floor.bar < 1.0 and _broken(one, k, 1.0):
            one.reasons |= _INFEASIBLE
        if safe and one.tripped == 0:
            return


@kernel()
def _asked(one: np.record) -> float:
    """Sum over the window of the rates that a slice's floor asks for."""
    return min(one.offered, one.committed_mbps * one.samples) * one.carried_ratio


@kernel()
def _broken(one: np.record, k: int, bar: float) -> bool:
    """Whether a slice gets less than ``bar`` times what a floor asks for."""
    if k == DELAY:
        return one.seen[_P99] * bar > one.most_delay_us
    return one.carried < _asked(one) * bar - _LEAST_MBPS * one.samples


@kernel()
def _trip(one: np.record, node: np.record, k: int) -> None:
    """The policy has broken a floor: the safe setting, and what was seen."""
    one.trip_before_ns = one.trip.until_ns
    # For so long at least that it can be shown that the safe setting does no better.
    start(one.trip, node.now_ns, node.window_ns + one.trial_patience_ns + 2 * node.period_ns)
    one.floor, one.began_ns = k, node.now_ns
    one.offered_mbps, one.carried_mbps = one.offered / one.samples, one.carried / one.samples
    one.delay_p99_us, one.floor_mbps = one.seen[_P99], _asked(one) / one.samples
    _change(one, node, 1)


@kernel()
def _give_back(one: np.record, node: np.record, k: int) -> None:
    """The safe setting does not keep the floor either: it is lowered, and as if it had not tripped."""
    floor, kept = one.floors[k], 1.0
    if k == DELAY:
        kept = one.most_delay_us / one.seen[_P99]
    elif _asked(one) > 0.0:
        kept = one.carried / _asked(one)
    floor.bar = node.tolerance * min(kept, 1.0)
    start(floor.lowered, node.now_ns, 0)
    floor.lowered.count += 1
    one.trip.until_ns = one.trip_before_ns
    _change(one, node, 0)


@kernel()
def _change(one: np.record, node: np.record, tripped: int) -> None:
    """The slice has its safe setting, or the policy, from now on."""
    one.tripped, one.starved = tripped, 0
    one.settled_ns = node.now_ns + node.window_ns
    _forget(one)


@kernel()
def _forget(one: np.record) -> None:
    """No floor has been broken so far."""
    for k in (RATE, DELAY):
        one.floors[k].broken_since_ns = NEVER_NS


@kernel()
def _starved(one: np.record, node: np.record, safe_mcpu: float) -> bool:
    """Whether a slice waits for what others have taken: of its share of the CPU, or of the uplink."""
    if node.seen[_UPLINK] >= _FULL:
        return True
    share_mcpu = min(safe_mcpu, node.node_mcpu * one.safe_share)
    return one.measured != 0 and one.waits_us >= _LONG_WAIT_US and one.cpu < _SHARE * share_mcpu * one.samples


@kernel()
def balance(node: np.record, slices: Records, knobs: Records) -> None:
    """A slice below its service floor has, among slices that follow the policy, what the safe setting of all gives it.

    Levels of nice say something beside those of others only: one level is the same factor of weight everywhere. So such
    a slice is as far from its safe level as the slice is that the policy favours most: it has against each at least the
    weight that the safe setting gives it, and the favoured slice keeps against it what the safe setting gives that one.
    Only where a level as low does not exist are the others held back. Where the policy favours nobody, the others move
    up together: what is no slice is not to gain by it. Where the slice is starved, no other has a higher CPU limit or
    egress rate than its own safe one.
    """
    count = len(slices)
    tripped, starved, least = False, False, math.inf
    for s in range(count):
        level = knobs[NICE * count + s]
        if slices[s].tripped != 0:
            tripped, starved = True, starved or slices[s].starved != 0
        else:
            # By how many levels the policy puts it above its safe one; a knob that never moves is where it would be
            # under the safe setting, too.
            least = min(least, level.value - level.safe if level.movable != 0 else 0.0)
    if not tripped or node.action >= SAFE:
        return
    if node.ranks == 0 or least == math.inf:
        least = 0.0
    offset = min(least, 0.0)
    for s in range(count):
        level = knobs[NICE * count + s]
        if slices[s].tripped != 0:
            offset = max(offset, level.low - level.safe) if level.movable != 0 else 0.0
    for s in range(count):
        one, level = slices[s], knobs[NICE * count + s]
        if one.tripped != 0:
            if level.movable != 0:
                level.value = level.safe + offset
            continue
        if level.movable != 0 and least > 0.0:
            level.value -= least
            one.reasons |= _FLOOR_BIT
        elif level.movable != 0 and node.ranks != 0 and level.value < level.safe + offset:
            level.value, one.urgent = level.safe + offset, 1
            one.reasons |= _FLOOR_BIT
        if starved:
            _hold_back(one, knobs[CPU_LIMIT * count + s])
            _hold_back(one, knobs[EGRESS * count + s])


@kernel()
def _hold_back(one: np.record, knob: np.record) -> None:
    """No higher CPU limit or egress rate than the safe setting gives a slice; no rate, or 0, is none."""
    most = math.inf if knob.safe <= 0.0 else knob.safe
    value = math.inf if knob.value <= 0.0 else knob.value
    if knob.movable != 0 and value > most:
        knob.value, one.urgent = knob.safe, 1
        one.reasons |= _FLOOR_BIT
