"""Whose fault is a broken service floor? Part of the guard's second kernel; records as of `layout`.

A floor that is broken for too long is a trip, and the safe setting is in force at once. From then on it is on trial:
how a slice's floor is kept (what the slice gets of what the floor asks for) is averaged over the last seconds in which
the policy was in charge, and likewise for the safe setting. Where that does no better, nobody could have kept the
floor: the policy decides again, and the floor is *spared*, which lowers it to a share of what the safe setting did.
Means of all that was seen, and not of the moments in which the floor was broken: those would always be better later.

A model saves trials. Where the floors together need clearly more CPU, or uplink, than there is, and the slice has no
less than the safe setting would give it, its floor is spared without one.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from ...env.knobs import CPU_LIMIT, EGRESS, NICE
from ...env.telemetry import NODE_FIELDS, SLICE_FIELDS
from . import layout as at
from .layout import Measured, State

_OFFERED, _CARRIED, _P99 = (SLICE_FIELDS.index(name) for name in ("offered_mbps", "carried_mbps", "delay_p99_us"))
_IDLE = NODE_FIELDS.index("cpu_idle_ratio")
_LEAST_MBPS = 1e-3  # less than this is missing by rounding
_COSTED_MBPS = 0.1  # what less traffic than this costs is mostly what an idle UPF costs
_KEPT_WELL = 0.9  # of what its floor asks for: a slice that gets less is likely to trip
_REMEMBERED = 0.5  # of what is known of the safe setting, from one trial to the next
_SHARE = 0.95  # of its share of the CPU that a slice has when it is said to have it


@njit(cache=True, error_model="numpy")
def _least(known: float, seen: float, forgetting: float) -> float:
    """The least of late of a figure; NaN: nothing is known yet."""
    return seen if math.isnan(known) else min(seen, known + forgetting * (seen - known))


@njit(cache=True, error_model="numpy")
def notice(measured: Measured, state: State) -> None:
    """Follow what the node's load is, and what each slice's traffic costs at least."""
    node = state.node[0]
    rules, memory = node.rules, node.memory
    load, used_mcpu = 0.0, 0.0
    for s in range(len(state.slices)):
        own = state.slices[s].memory
        if measured.valid[s, 0]:
            load += measured.slices[_OFFERED, s, 0]
        used_mcpu += own.cpu_sum / own.samples if own.samples > 0 else 0.0
        if own.carried_sum > _COSTED_MBPS * own.samples and own.cpu_sum > 0.0:
            cost = own.cpu_sum / own.carried_sum
            own.cost_mcpu_per_mbps = _least(own.cost_mcpu_per_mbps, cost, rules.forgetting)
    idle = float(measured.node[_IDLE, 0])
    if math.isnan(memory.load_mbps):
        memory.load_mbps, memory.idle_ratio = load, idle
    memory.load_mbps += rules.smoothing * (load - memory.load_mbps)
    memory.idle_ratio += rules.smoothing * (idle - memory.idle_ratio)
    others_mcpu = max(rules.node_mcpu * (1.0 - memory.idle_ratio) - used_mcpu, 0.0)
    memory.others_mcpu = _least(memory.others_mcpu, others_mcpu, rules.forgetting)


@njit(cache=True, error_model="numpy")
def forget(state: State) -> None:
    """Begin to watch all floors anew."""
    for s in range(len(state.slices)):
        for k in range(at.FLOORS):
            state.slices[s].floors[k].since_ns = at.NEVER_NS


@njit(cache=True, error_model="numpy")
def _asked_mbps(one: np.record) -> float:
    """Rate that a slice's floor asks for, over the window."""
    memory, rules = one.memory, one.rules
    if memory.samples == 0:
        return 0.0
    return min(memory.offered_sum / memory.samples, rules.committed_mbps) * rules.carried_ratio


@njit(cache=True, error_model="numpy")
def _broken(measured: Measured, one: np.record, s: int, k: int, bar: float) -> bool:
    """Whether a slice is served less than ``bar`` times what its floor asks for."""
    if not measured.valid[s, 0]:
        return False
    if k == at.DELAY:
        return measured.slices[_P99, s, 0] > one.rules.most_delay_us / bar
    memory = one.memory
    return memory.carried_sum < (_asked_mbps(one) * bar - _LEAST_MBPS) * memory.samples


@njit(cache=True, error_model="numpy")
def _lasts(measured: Measured, one: np.record, s: int, k: int, bar: float, now: int) -> bool:
    """Whether a floor has been broken for too long."""
    floor = one.floors[k]
    if not _broken(measured, one, s, k, bar):
        floor.since_ns = at.NEVER_NS
        return False
    if floor.since_ns == at.NEVER_NS:
        floor.since_ns = now
    return now - floor.since_ns >= one.rules.floor_patience_ns


@njit(cache=True, error_model="numpy")
def _got(measured: Measured, one: np.record, s: int, k: int) -> tuple[float, float]:
    """What a slice gets now of what its floor asks for, no more than all of it, and that."""
    if not measured.valid[s, 0]:
        return 0.0, 0.0
    if k == at.DELAY:
        most, delay = one.rules.most_delay_us, measured.slices[_P99, s, 0]
        return (1.0 if delay <= most else most / delay), 1.0
    asked = _asked_mbps(one)
    return min(one.memory.carried_sum / max(one.memory.samples, 1), asked), asked


@njit(cache=True, error_model="numpy")
def _kept(got: float, asked: float) -> float:
    return got / asked if asked > 0.0 else 1.0


@njit(cache=True, error_model="numpy")
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


@njit(cache=True, error_model="numpy")
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


@njit(cache=True, error_model="numpy")
def _cost(one: np.record) -> float:
    """CPU in mCPU that a Mbit/s of a slice takes at least; nothing, as long as it is not known."""
    cost = one.memory.cost_mcpu_per_mbps
    return 0.0 if math.isnan(cost) else cost


@njit(cache=True, error_model="numpy")
def _safe_share_mcpu(state: State, own: int, room_mcpu: float) -> float:
    """CPU that a slice would get under the safe setting: by weight, of what those leave that want less."""
    slices, nice_weight = state.slices, state.node[0].rules.nice_weight
    left, total = room_mcpu, 0.0
    for s in range(len(slices)):
        slices[s].filled = 0
        total += slices[s].rules.base_weight * nice_weight[int(slices[s].knobs[NICE].rules.safe) + 20]
    share, changed = 0.0, True
    while changed:
        changed = False
        for s in range(len(slices)):
            one = slices[s]
            if one.filled != 0 or one.memory.samples == 0:
                continue
            memory = one.memory
            weight = one.rules.base_weight * nice_weight[int(one.knobs[NICE].rules.safe) + 20]
            offered, use = memory.offered_sum / memory.samples, memory.cpu_sum / memory.samples
            wants = max(offered * _cost(one), use)
            if s == own:
                # At what its traffic costs now: a slice must not be said to want less than it does.
                cost = memory.cpu_sum / memory.carried_sum if memory.carried_sum > 0.0 else math.inf
                wants = max(wants, offered * cost)
            wants = min(wants, one.knobs[CPU_LIMIT].rules.safe)
            part = left * weight / total
            if wants <= part:
                one.filled, changed = 1, True
                left, total = left - wants, total - weight
                if s == own:
                    return wants
            elif s == own:
                share = part
    return share


@njit(cache=True, error_model="numpy")
def _out_of_reach(state: State, own: int) -> bool:
    """Whether no division of the node keeps all rate floors, and a slice has its share under the safe setting."""
    node, one = state.node[0], state.slices[own]
    rules = node.rules
    need_mcpu, need_mbps = 0.0, 0.0
    for s in range(len(state.slices)):
        asked = _asked_mbps(state.slices[s])
        need_mbps += asked
        need_mcpu += asked * _cost(state.slices[s])
    asked, rate = _asked_mbps(one), one.knobs[EGRESS].memory.last_held
    if 0.0 < rate < asked * rules.room_ratio:
        return False  # shaped, which is nobody's doing but the policy's
    # The least that others use: they fill what a policy denies the slices.
    room_mcpu = max(rules.node_mcpu - node.memory.others_mcpu, 0.0)
    samples = one.memory.samples
    if need_mcpu > rules.room_ratio * room_mcpu:
        return one.memory.cpu_sum / samples >= _SHARE * _safe_share_mcpu(state, own, room_mcpu)
    if need_mbps > rules.room_ratio * rules.uplink_mbps:
        return one.memory.carried_sum / samples >= _SHARE * rules.uplink_mbps * asked / need_mbps
    return False


@njit(cache=True, error_model="numpy")
def starved(measured: Measured, state: State, now: int) -> bool:
    """Whether a floor has been broken for longer than it may be, under the policy; prepares the trial."""
    node, tripped = state.node[0], False
    fading, settled = node.rules.fading, now >= node.memory.settled_at_ns
    for s in range(len(state.slices)):
        one = state.slices[s]
        for k in range(at.FLOORS):
            floor = one.floors[k]
            if settled:
                got, asked = _got(measured, one, s, k)
                floor.policy_got += fading * (got - floor.policy_got)
                floor.policy_asked += fading * (asked - floor.policy_asked)
            floor.tripped, bar = 0, 1.0
            if _is_spared(floor, node, now):
                bar = floor.bar
                if _broken(measured, one, s, k, 1.0):
                    one.excused = 1
            if _lasts(measured, one, s, k, bar, now):
                if k == at.RATE and _out_of_reach(state, s):
                    _spare(floor, node, _kept(floor.policy_got, floor.policy_asked), now)
                    one.excused = 1
                else:
                    floor.tripped, tripped = 1, True
    if not tripped:
        return False
    longest = 0.0
    for s in range(len(state.slices)):
        one = state.slices[s]
        for k in range(at.FLOORS):
            floor = one.floors[k]
            # One that may be next is tried along with it: its own trial can be saved.
            due = floor.since_ns != at.NEVER_NS and 2.0 * (now - floor.since_ns) >= one.rules.floor_patience_ns
            due = due or _kept(floor.policy_got, floor.policy_asked) < _KEPT_WELL
            floor.failed, floor.trial_ticks, floor.compared = 0, 0, 1 if due else floor.tripped
            if floor.compared != 0:
                _, floor.load = _got(measured, one, s, k)
                floor.safe_got, floor.safe_asked = _REMEMBERED * floor.safe_got, _REMEMBERED * floor.safe_asked
            if floor.tripped != 0:
                longest = max(longest, one.rules.trial_patience_ns)
    memory, rules = node.memory, node.rules
    memory.on_trial = 1
    memory.settled_at_ns = now + math.ceil(rules.settle_ns)
    memory.counts_at_ns = now + math.ceil(rules.settle_ns + longest + 2.0 * rules.period_ns)
    forget(state)
    return True


@njit(cache=True, error_model="numpy")
def nobody_could(measured: Measured, state: State, now: int) -> bool:
    """Whether the safe setting has failed all floors that were the reason for the trip in force.

    It fails one when it keeps it no better than the policy did, after it has been measured for long enough with half
    the load at least: without there is nothing to compare.
    """
    node = state.node[0]
    if now < node.memory.settled_at_ns:
        return False
    rules, all_failed = node.rules, True
    for s in range(len(state.slices)):
        one = state.slices[s]
        for k in range(at.FLOORS):
            floor = one.floors[k]
            if floor.compared == 0 or floor.failed != 0:
                continue
            got, asked = _got(measured, one, s, k)
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


@njit(cache=True, error_model="numpy")
def policy_again(state: State, now: int) -> None:
    """The policy is in charge again, and all floors are watched anew."""
    memory = state.node[0].memory
    memory.settled_at_ns = now + math.ceil(state.node[0].rules.settle_ns)
    forget(state)
