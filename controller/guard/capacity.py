"""What slices need, and what the node has: a model of CPU and uplink. Part of the second kernel; see `layout`."""

from __future__ import annotations

import math

import numpy as np

from slicepilot.env.compiled import kernel
from slicepilot.env.knobs import CPU_LIMIT, EGRESS, NICE
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS

from . import layout as at
from .layout import Measured, State

_OFFERED, _WAIT = (SLICE_FIELDS.index(name) for name in ("offered_mbps", "runqueue_delay_us"))
_IDLE, _UPLINK = (NODE_FIELDS.index(name) for name in ("cpu_idle_ratio", "uplink_use_ratio"))
_COSTED_MBPS = 0.1  # what less traffic than this costs is mostly what an idle UPF costs
_SHARE = 0.95  # of its share of the CPU that a slice has when it is said to have it
_ROUNDING = 1e-9
# A socket buffer of 212,992 bytes (net.core.rmem_default) is full after that at 850 Mbit/s: who waits less for a CPU
# than this loses nothing by it.
_LONG_WAIT_US = 2e3
_FULL = 0.9  # of the uplink's rate


@kernel()
def _least(known: float, seen: float, forgetting: float) -> float:
    """The least of late of a figure; NaN: nothing is known yet."""
    return seen if math.isnan(known) else min(seen, known + forgetting * (seen - known))


@kernel()
def notice(measured: Measured, state: State, now: int) -> None:
    """Follow what the node's load is, what each slice offers and waits, and what its traffic costs at least."""
    node = state.node[0]
    rules, memory = node.rules, node.memory
    load, used_mcpu = 0.0, 0.0
    for s in range(len(state.slices)):
        own, believed = state.slices[s].memory, state.slices[s].doubted == 0
        if measured.valid[s, 0] and believed:
            load += measured.slices[_OFFERED, s, 0]
            own.wait_us += rules.settling * (measured.slices[_WAIT, s, 0] - own.wait_us)
        if own.samples == 0 or own.offered_sum < state.slices[s].rules.least_mbps * own.samples * (1.0 - _ROUNDING):
            own.asking_since_ns = at.NEVER_NS
        elif own.asking_since_ns == at.NEVER_NS:
            own.asking_since_ns = now
        used_mcpu += own.cpu_sum / own.samples if own.samples > 0 else 0.0
        if believed and own.carried_sum > _COSTED_MBPS * own.samples and own.cpu_sum > 0.0:
            cost = own.cpu_sum / own.carried_sum
            own.cost_mcpu_per_mbps = _least(own.cost_mcpu_per_mbps, cost, rules.forgetting)
    idle = float(measured.node[_IDLE, 0])
    if math.isnan(memory.load_mbps):
        memory.load_mbps, memory.idle_ratio = load, idle
    memory.load_mbps += rules.smoothing * (load - memory.load_mbps)
    memory.idle_ratio += rules.smoothing * (idle - memory.idle_ratio)
    others_mcpu = max(rules.node_mcpu * (1.0 - memory.idle_ratio) - used_mcpu, 0.0)
    memory.others_mcpu = _least(memory.others_mcpu, others_mcpu, rules.forgetting)


@kernel()
def asked_mbps(one: np.record) -> float:
    """Rate that a slice's floor asks for, over the window."""
    memory, rules = one.memory, one.rules
    if memory.samples == 0:
        return 0.0
    return min(memory.offered_sum / memory.samples, rules.committed_mbps) * rules.carried_ratio


@kernel()
def _room_mcpu(node: np.record) -> float:
    """CPU for the slices: all but the least that others use, since those fill what a policy denies the slices."""
    return max(node.rules.node_mcpu - node.memory.others_mcpu, 0.0)


@kernel()
def _cost(one: np.record) -> float:
    """CPU in mCPU that a Mbit/s of a slice takes at least; nothing, as long as it is not known."""
    cost = one.memory.cost_mcpu_per_mbps
    return 0.0 if math.isnan(cost) else cost


@kernel()
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


@kernel()
def out_of_reach(state: State, own: int) -> bool:
    """Whether no division of the node keeps all rate floors, and a slice has its share under the safe setting."""
    node, one = state.node[0], state.slices[own]
    rules = node.rules
    need_mcpu, need_mbps = 0.0, 0.0
    for s in range(len(state.slices)):
        asked = asked_mbps(state.slices[s])
        need_mbps += asked
        need_mcpu += asked * _cost(state.slices[s])
    asked, rate = asked_mbps(one), one.knobs[EGRESS].memory.last_held
    if 0.0 < rate < asked * rules.room_ratio:
        return False  # shaped, which is nobody's doing but the policy's
    room_mcpu = _room_mcpu(node)
    samples = one.memory.samples
    if need_mcpu > rules.room_ratio * room_mcpu:
        return one.memory.cpu_sum / samples >= _SHARE * _safe_share_mcpu(state, own, room_mcpu)
    if need_mbps > rules.room_ratio * rules.uplink_mbps:
        return one.memory.carried_sum / samples >= _SHARE * rules.uplink_mbps * asked / need_mbps
    return False


@kernel()
def held_up(measured: Measured, state: State, s: int) -> bool:
    """Whether a slice waits for what others have taken of its share under the safe setting: of the CPU, or the uplink.

    One that waits and has that share is short of something else.
    """
    node, memory = state.node[0], state.slices[s].memory
    if measured.node[_UPLINK, 0] >= _FULL:
        return True
    if memory.wait_us < _LONG_WAIT_US or memory.samples == 0:
        return False
    return memory.cpu_sum / memory.samples < _SHARE * _safe_share_mcpu(state, s, _room_mcpu(node))
