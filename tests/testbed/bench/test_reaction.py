"""Reaction times from packets whose delays are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from slicepilot.controller.telemetry.layout import PACKET_EVENT
from slicepilot.testbed.bench.reaction import Tick, burst_starts, reaction

MS = 1_000_000
BURST_MS, LENGTH_MS, BOUND_US = 500, 700, 5000.0


def packets_of(slow_ms: tuple[int, int] | None, lost_ms: tuple[int, int] | None = None) -> npt.NDArray[Any]:
    """Slice 0 sends every 0.25 ms, slice 1 from 500 to 1200 ms; what arrives at slice 0 in ``slow_ms`` leaves at its
    end, or within 1 ms."""
    mine = np.arange(0, 1400 * MS, MS // 4)
    leave = mine + MS
    if slow_ms:
        begin, end = slow_ms[0] * MS, slow_ms[1] * MS
        leave = np.where((mine >= begin) & (mine < end), np.maximum(leave, end), leave)
    if lost_ms:
        kept = (mine < lost_ms[0] * MS) | (mine >= lost_ms[1] * MS)
        mine, leave = mine[kept], leave[kept]
    others = np.arange(BURST_MS * MS, (BURST_MS + LENGTH_MS) * MS, MS)
    packets = np.zeros(len(mine) + len(others), PACKET_EVENT)
    packets["n3_ns"] = np.concatenate([mine, others])
    packets["exit_ns"] = np.concatenate([leave, others + MS])
    packets["slice"] = np.concatenate([np.zeros(len(mine)), np.ones(len(others))])
    return np.random.default_rng(0).permutation(packets)


def ticks_of(changes_ms: set[int]) -> list[Tick]:
    """Every 5 ms, taking 0.1 ms."""
    return [Tick(at * MS, at * MS + MS // 10, at in changes_ms) for at in range(0, 1400, 5)]


def judged(packets: npt.NDArray[Any], changes_ms: set[int] | None = None) -> Any:
    (start,) = burst_starts(packets, 0)
    assert start == BURST_MS * MS
    return reaction(packets, ticks_of(changes_ms or set()), 0, BOUND_US, int(start), LENGTH_MS * MS)


def test_who_never_leaves_the_bound_takes_no_time() -> None:
    found = judged(packets_of(None))
    assert (found.total_ns, found.left, found.back) == (0, False, True)


def test_the_time_is_divided_into_its_parts() -> None:
    # Packets wait from 512 ms on, the knobs change at 520.1, what waited has left at 550.
    found = judged(packets_of((512, 550)), {520})
    assert found.left
    assert found.back
    assert found.total_ns == 50 * MS  # the window from 540 is the last one that is outside
    assert found.window_ns == 0
    assert found.decision_ns == pytest.approx(20.1 * MS)
    assert found.drain_ns == pytest.approx(29.9 * MS)
    assert found.rest_ns == 0


def test_without_a_change_nothing_is_said_of_decisions() -> None:
    found = judged(packets_of((512, 550)), {480, 900})
    assert found.total_ns == 50 * MS
    assert found.decision_ns is None


def test_lost_packets_are_outside() -> None:
    assert judged(packets_of(None, lost_ms=(600, 640))).total_ns == 140 * MS


def test_who_does_not_come_back_takes_the_whole_burst() -> None:
    found = judged(packets_of((520, 1300)))
    assert not found.back
    assert found.total_ns == LENGTH_MS * MS


def test_a_short_calm_is_not_back() -> None:
    packets = packets_of((512, 550))
    again = (packets["slice"] == 0) & (packets["n3_ns"] >= 580 * MS) & (packets["n3_ns"] < 590 * MS)
    packets["exit_ns"][again] += 10 * MS
    assert judged(packets).total_ns == 90 * MS


def test_bursts_are_found_by_the_silence_before_them() -> None:
    packets = packets_of(None)
    quiet = packets[packets["slice"] == 0]
    assert len(burst_starts(quiet, 0)) == 0
    assert len(burst_starts(packets[:0], 0)) == 0
