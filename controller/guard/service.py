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


@kernel
def service_floors(node: np.record, slices: Records, knobs: Records) -> None:
    """A slice whose service floor stays broken for ``patience_s`` under the policy gets its safe setting; if the floor
    stays broken under that as well, the node cannot keep it, and the slice goes back to the policy with its floor
    lowered to half of what the safe setting achieved, for ``spare_s``.

    Otherwise the trip counts: the safe setting stays for `Safe.hold_s`, twice as long at each further trip, and at last
    until an order. The lowered floor is a floor as any other, which the policy has to keep; ``spare_s`` doubles, too.
    """
    watching = node.floors != 0 and node.usable != 0 and node.in_control != 0 and node.action < SAFE
    for s in range(len(slices)):
        slice_ = slices[s]
        if slice_.tripped != 0 and slice_.latched == 0 and node.now_ns >= slice_.trip.until_ns:
            slice_.trip.count += 1
            if slice_.trip.count >= node.latch_after:
                slice_.latched = 1
            else:
                _change(slice_, node, 0)
        if watching and slice_.measured != 0:
            slice_.waits_us += min(node.period_ns / node.window_ns, 1.0) * (slice_.seen[_WAIT] - slice_.waits_us)
            _watch(slice_, node)
        else:
            slice_.asking_since_ns = NEVER_NS
            _forget(slice_)
            if slice_.tripped != 0 and slice_.measured == 0:
                _wait(slice_, node)
        if slice_.tripped != 0:
            if node.usable != 0 and slice_.starved == 0 and _starved(slice_, node, knobs[s].safe):
                slice_.starved = 1
            state = _LATCHED if slice_.latched != 0 else (_TRIAL if node.trials != 0 else 0)
            act(slice_, SAFE, _SLA_FLOOR | state)


@kernel
def _wait(slice_: np.record, node: np.record) -> None:
    """A trip of a slice that is not measured goes on, until it can be shown that the safe setting does no better."""
    least_ns = node.window_ns + slice_.trial_patience_ns + 2 * node.period_ns
    slice_.trip.until_ns = max(slice_.trip.until_ns, node.now_ns + least_ns)


@kernel
def _watch(slice_: np.record, node: np.record) -> None:
    """Look whether a slice's floors are kept, by the policy or by the safe setting, and what follows."""
    now_ns, safe = node.now_ns, slice_.tripped != 0
    if slice_.samples == 0 or slice_.offered < slice_.least_mbps * slice_.samples * (1.0 - _ROUNDING):
        slice_.asking_since_ns = NEVER_NS
    elif slice_.asking_since_ns == NEVER_NS:
        slice_.asking_since_ns = now_ns
    if slice_.asking_since_ns == NEVER_NS or now_ns < slice_.settled_ns or slice_.latched != 0:
        _forget(slice_)
        return
    proven = now_ns - slice_.asking_since_ns >= node.window_ns
    patience_ns = slice_.trial_patience_ns if safe else slice_.patience_ns
    for k in (RATE, DELAY):
        floor = slice_.floors[k]
        if not safe and now_ns >= floor.lowered.until_ns:
            floor.bar = 1.0
        bar = floor.bar
        if safe:
            bar *= slice_.clearly if k == RATE else CLEARLY
        if not _broken(slice_, k, bar):
            floor.broken_since_ns = NEVER_NS
        elif floor.broken_since_ns == NEVER_NS:
            floor.broken_since_ns = now_ns
        lasts = floor.broken_since_ns != NEVER_NS and now_ns - floor.broken_since_ns >= patience_ns
        if proven and lasts and not safe:
            _trip(slice_, node, k)
            return
        if proven and lasts and k == slice_.floor and node.trials != 0:
            _give_back(slice_, node, k)
        if slice_.tripped == 0 and floor.bar < 1.0 and _broken(slice_, k, 1.0):
            slice_.reasons |= _INFEASIBLE
        if safe and slice_.tripped == 0:
            return


@kernel
def _asked(slice_: np.record) -> float:
    """Sum over the window of the rates that a slice's floor requires."""
    return min(slice_.offered, slice_.committed_mbps * slice_.samples) * slice_.carried_ratio


@kernel
def _broken(slice_: np.record, k: int, bar: float) -> bool:
    """Whether a slice gets less than ``bar`` times what a floor requires."""
    if k == DELAY:
        return slice_.seen[_P99] * bar > slice_.most_delay_us
    return slice_.carried < _asked(slice_) * bar - _LEAST_MBPS * slice_.samples


@kernel
def _trip(slice_: np.record, node: np.record, k: int) -> None:
    """Give the slice its safe setting, as a floor was broken under the policy, and record the figures."""
    slice_.trip_before_ns = slice_.trip.until_ns
    # At least so long that a trial can show that the safe setting does no better.
    start(slice_.trip, node.now_ns, node.window_ns + slice_.trial_patience_ns + 2 * node.period_ns)
    slice_.floor, slice_.began_ns = k, node.now_ns
    slice_.offered_mbps, slice_.carried_mbps = slice_.offered / slice_.samples, slice_.carried / slice_.samples
    slice_.delay_p99_us, slice_.floor_mbps = slice_.seen[_P99], _asked(slice_) / slice_.samples
    _change(slice_, node, 1)


@kernel
def _give_back(slice_: np.record, node: np.record, k: int) -> None:
    """Lower a floor that the safe setting does not keep either, and give the slice back to the policy as if it had not
    tripped."""
    floor, kept = slice_.floors[k], 1.0
    if k == DELAY:
        kept = slice_.most_delay_us / slice_.seen[_P99]
    elif _asked(slice_) > 0.0:
        kept = slice_.carried / _asked(slice_)
    floor.bar = node.tolerance * min(kept, 1.0)
    start(floor.lowered, node.now_ns, 0)
    floor.lowered.count += 1
    slice_.trip.until_ns = slice_.trip_before_ns
    _change(slice_, node, 0)


@kernel
def _change(slice_: np.record, node: np.record, tripped: int) -> None:
    """The slice has its safe setting, or the policy, from now on."""
    slice_.tripped, slice_.starved = tripped, 0
    slice_.settled_ns = node.now_ns + node.window_ns
    _forget(slice_)


@kernel
def _forget(slice_: np.record) -> None:
    """No floor has been broken so far."""
    for k in (RATE, DELAY):
        slice_.floors[k].broken_since_ns = NEVER_NS


@kernel
def _starved(slice_: np.record, node: np.record, safe_mcpu: float) -> bool:
    """Whether a slice waits because others use its share of the CPU, or the whole uplink; False where it is not
    measured."""
    if slice_.measured == 0:
        return False
    if node.seen[_UPLINK] >= _FULL:
        return True
    share_mcpu = min(safe_mcpu, node.node_mcpu * slice_.safe_share)
    return slice_.waits_us >= _LONG_WAIT_US and slice_.cpu < _SHARE * share_mcpu * slice_.samples


@kernel
def balance(node: np.record, slices: Records, knobs: Records) -> None:
    """A slice below its service floor has, among slices that follow the policy, what the safe setting of all gives it.

    Only differences of nice levels matter, as a level is the same factor of weight everywhere. So the slice is put as
    far above its safe level as the slice that the policy favours most: its weight relative to each other slice is then
    at least that of the safe setting, and relative to the favoured slice the same. If there is no level so low, the
    others are held back instead. If the policy favours no slice, the others move up together, so that processes outside
    the slices do not gain. While the slice is starved, no other slice has a CPU limit or egress rate above its own safe
    value.
    """
    count = len(slices)
    tripped, starved, least = False, False, math.inf
    for s in range(count):
        level = knobs[NICE * count + s]
        if slices[s].tripped != 0:
            tripped, starved = True, starved or slices[s].starved != 0
        else:
            # Levels by which the policy puts it above its safe level; a knob that never moves is at the same level
            # under the safe setting.
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
        slice_, level = slices[s], knobs[NICE * count + s]
        if slice_.tripped != 0:
            if level.movable != 0:
                level.value = level.safe + offset
            continue
        if level.movable != 0 and least > 0.0:
            level.value -= least
            slice_.reasons |= _FLOOR_BIT
        elif level.movable != 0 and node.ranks != 0 and level.value < level.safe + offset:
            level.value, slice_.urgent = level.safe + offset, 1
            slice_.reasons |= _FLOOR_BIT
        if starved:
            _hold_back(slice_, knobs[CPU_LIMIT * count + s])
            _hold_back(slice_, knobs[EGRESS * count + s])


@kernel
def _hold_back(slice_: np.record, knob: np.record) -> None:
    """No higher CPU limit or egress rate than the safe setting gives a slice; no rate, or 0, is none."""
    most = math.inf if knob.safe <= 0.0 else knob.safe
    value = math.inf if knob.value <= 0.0 else knob.value
    if knob.movable != 0 and value > most:
        knob.value, slice_.urgent = knob.safe, 1
        slice_.reasons |= _FLOOR_BIT
