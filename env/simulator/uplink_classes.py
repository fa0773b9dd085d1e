"""The shared uplink with a class for each slice, compiled as `slicepilot.env.simulator.kernels`, which calls it."""

from __future__ import annotations

import numpy as np

from slicepilot.env.compiled import kernel

from .cpu import ONE, TINY, ZERO
from .hardware import UPLINK_PRIORITIES

# Axis 0 of the classes (3, S, L): `hardware.UPLINK_CLASS`.
GUARANTEE, CEILING, PRIORITY = range(3)
# Of a class's queue, what is a rounding error.
LEFT_OVER = np.float32(1e-6)
HALF, MILLION = np.float32(0.5), np.float32(1e6)


@kernel
def share_by_class(
    first: int,
    stop: int,
    classes: np.ndarray,
    packet_mbit: np.ndarray,
    queued_mbit: np.ndarray,
    added_mbit: np.ndarray,
    dt_s: np.ndarray,
    per_s: np.ndarray,
    uplink_mbps: np.ndarray,
    buffer_s: np.ndarray,
    shares: np.ndarray,
) -> None:
    """Guarantees, then what is left by priority, up to ceilings.

    classes (3, S, L), packet_mbit and queued_mbit (S, L) of all lanes; of those from ``first`` to ``stop``, at most C:
    added_mbit (S, C) in this period, dt_s, per_s (its inverse), uplink_mbps and buffer_s (C,).

    Fills shares (4, S, C): of each slice, what rows `THROUGH` to `UPLINK_P99` are of the whole uplink.

    A packet is not preempted: a packet that comes while another class is backlogged waits for one packet of that class.
    Where that class is of the same or a higher priority the scheduler is weighted: a packet leaves no later than at the
    guaranteed rate, instead of at the link's (Parekh and Gallager, IEEE/ACM Transactions on Networking 1(3), 1993,
    theorem 1). That bound is the 99th percentile here, half of it the median.
    """
    num_slices = len(added_mbit)
    want = np.empty(num_slices, np.float32)
    got, over = np.empty_like(want), np.empty_like(want)
    for lane in range(first, stop):
        i = lane - first
        dt, uplink = dt_s[i], max(uplink_mbps[i], TINY)
        for s in range(num_slices):
            want[s] = min(queued_mbit[s, lane] + added_mbit[s, i], classes[CEILING, s, lane] * dt)
            got[s] = ZERO
        rest = uplink * dt
        for level in range(UPLINK_PRIORITIES):
            for s in range(num_slices):
                if classes[PRIORITY, s, lane] == level:
                    got[s] = min(want[s], classes[GUARANTEE, s, lane] * dt, rest)
                    rest -= got[s]
        for level in range(UPLINK_PRIORITIES):
            rest = lend(level, lane, classes, want, got, rest)
        for s in range(num_slices):
            backlog = queued_mbit[s, lane] + added_mbit[s, i]
            left = backlog - got[s]
            over[s] = left if left > LEFT_OVER * backlog else ZERO
        for s in range(num_slices):
            before = queued_mbit[s, lane]
            rate = max(got[s] * per_s[i], TINY) if over[s] > ZERO else uplink
            keep = min(ONE, buffer_s[i] * rate / max(over[s], TINY))
            longest, at_share = ZERO, False
            for other in range(num_slices):
                if other != s and over[other] > ZERO:
                    longest = max(longest, packet_mbit[other, lane])
                    at_share |= classes[PRIORITY, other, lane] <= classes[PRIORITY, s, lane]
            wait_s = longest / uplink
            if at_share and over[s] == ZERO:
                guarantee = min(max(classes[GUARANTEE, s, lane], TINY), uplink)
                wait_s += packet_mbit[s, lane] * (ONE / guarantee - ONE / uplink)
            shares[0, s, i] = got[s] / max(before + added_mbit[s, i], TINY) if over[s] > ZERO else ONE
            shares[1, s, i] = keep
            shares[2, s, i] = HALF * MILLION * ((before + over[s] * keep) / rate + wait_s)
            shares[3, s, i] = MILLION * (max(before, over[s] * keep) / rate + wait_s)


@kernel
def lend(level: int, lane: int, classes: np.ndarray, want: np.ndarray, got: np.ndarray, rest: np.float32) -> np.float32:
    """Share what is left among the classes of a priority, by their guarantees; returns what is left then."""
    for _ in range(len(want)):
        total = ZERO
        for s in range(len(want)):
            if classes[PRIORITY, s, lane] == level and want[s] > got[s]:
                total += max(classes[GUARANTEE, s, lane], TINY)
        if total == ZERO or rest <= ZERO:
            break
        given, capped = ZERO, False
        for s in range(len(want)):
            if classes[PRIORITY, s, lane] == level and want[s] > got[s]:
                share = rest * max(classes[GUARANTEE, s, lane], TINY) / total
                capped |= share >= want[s] - got[s]
                given += min(share, want[s] - got[s])
                got[s] = min(got[s] + share, want[s])
        rest = max(rest - given, ZERO)
        if not capped:
            break
    return rest
