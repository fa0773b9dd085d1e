from typing import Any

import numpy as np
import pytest

from slicepilot.agents.heuristics.captain import Captain
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import Promises
from slicepilot.env.telemetry import Telemetry


def limits(played: Any) -> np.ndarray:
    return np.stack([knobs.cpu_limit_mcpu for knobs in played.knobs])


def test_limits_come_down_to_what_is_used_under_light_load(light: Any, play: Any) -> None:
    played = play(Captain(), light)
    limit, use = limits(played), np.stack([t.cpu_use_mcpu for t in played.telemetry])
    assert (limit[0] == 1000).all()
    assert (limit[-20:].mean(axis=0) < 2.5 * use[-20:].mean(axis=0)).all()
    assert (limit[-20:].mean(axis=0) > use[-20:].mean(axis=0)).all()
    assert (played.violated <= 3).all()


def test_limits_go_up_again_when_load_comes_back(loads: Any, play: Any) -> None:
    run = loads([150.0, 45.0, 45.0], 80)
    original = run.draw

    def draw(lanes: int, rng: np.random.Generator) -> Any:
        episode = original(lanes, rng)
        episode.traffic.profile_time_s = np.broadcast_to(
            np.asarray([0.0, 39.0, 40.0], np.float32), (1, 3, lanes, 3)
        ).copy()
        episode.traffic.profile_factor = np.broadcast_to(
            np.asarray([0.2, 0.2, 1.0], np.float32), (1, 3, lanes, 3)
        ).copy()
        return episode

    run.draw = draw
    played = play(Captain(), run)
    limit = limits(played)[:, 0]
    assert (limit[39] < 350).all()
    assert (limit[-1] > 600).all()
    assert played.telemetry[-1].carried_mbps[0] == pytest.approx(150.0, rel=0.05)


class Probe:
    """A Captain of one slice and lane, fed by hand: CPU use and throttled ratio of each period."""

    def __init__(self, slices: Any, period_s: float = 1.0, targets: np.ndarray | None = None) -> None:
        one = np.ones(1, np.float32)
        context = Context(
            np.float32(period_s) * one,
            4 * one,
            1000 * one,
            Promises.of(slices),
            np.ones((len(slices), 1), np.float32),
            100,
        )
        self.agent = Captain(targets=targets)
        self.agent.reset(slices, context, 0)
        self.size = len(slices)

    def feed(self, use_mcpu: float, throttled: float = 0.0) -> float:
        telemetry = Telemetry.empty(self.size)
        telemetry.slices[5] = use_mcpu
        telemetry.slices[6] = throttled
        return float(self.agent.decide(telemetry, Knobs.none(self.size)).cpu_limit_mcpu[0, 0])


def test_scale_up_is_in_proportion_to_the_excess_over_the_target(slice_set: Any) -> None:
    probe = Probe(slice_set(2))
    probe.agent.quota_mcpu[:] = 400.0
    # Target 0.02, alpha 3: 400 x (1 + 0.26 - 0.06).
    assert probe.feed(400.0, throttled=0.26) == pytest.approx(480.0)
    assert probe.agent.margin[0, 0] == pytest.approx(0.24)


def test_scale_down_goes_to_the_largest_use_but_not_below_half(slice_set: Any) -> None:
    probe = Probe(slice_set(2))
    assert [probe.feed(use) for use in (300.0, 700.0, 300.0, 300.0)] == [1000.0] * 4
    assert probe.feed(300.0) == pytest.approx(700.0)
    probe = Probe(slice_set(2))
    assert [probe.feed(10.0) for _ in range(8)][-4:] == [500.0, 250.0, 125.0, 100.0]


def test_no_scale_down_for_a_small_gain(slice_set: Any) -> None:
    probe = Probe(slice_set(2))
    assert [probe.feed(950.0) for _ in range(8)] == [1000.0] * 8


def test_scale_down_is_rolled_back_when_it_throttles(slice_set: Any) -> None:
    probe = Probe(slice_set(2))
    probe.agent.quota_mcpu[:] = 600.0
    assert [probe.feed(400.0) for _ in range(5)][-1] == pytest.approx(400.0)
    # What it was, and what was taken away on top.
    assert probe.feed(400.0, throttled=0.5) == pytest.approx(800.0)
    assert probe.agent.margin[0, 0] == pytest.approx(0.48)


def test_roll_back_does_not_wait_for_the_next_decision(slice_set: Any) -> None:
    probe = Probe(slice_set(2), period_s=0.1)
    feeds = [probe.feed(600.0) for _ in range(50)]
    assert feeds[48:] == [1000.0, 600.0]
    assert probe.feed(600.0, throttled=1.0) == 1000.0


def test_slices_of_less_weight_are_allowed_more_throttling(slice_set: Any) -> None:
    probe = Probe(slice_set(2))
    target = probe.agent._target[:, 0]
    assert target[0] == pytest.approx(0.02)
    assert target[1] == pytest.approx(0.02 * 10**0.5)
    custom = Probe(slice_set(2), targets=np.asarray([0.1, 0.2], np.float32))
    assert custom.agent._target[:, 0].tolist() == pytest.approx([0.1, 0.2])


def test_short_control_periods_are_joined_to_cfs_periods(light: Any, loads: Any, play: Any) -> None:
    run = loads([60.0, 45.0, 45.0], 4000, period_s=0.002)
    limit = limits(play(Captain(), run))
    changes = np.nonzero((np.diff(limit, axis=0) != 0).any(axis=(1, 2)))[0] + 1
    # The window of 50 CFS periods is full after 5 s; then at most one scale-down a second, and roll-backs.
    assert changes[0] * 0.002 >= 4.9
    assert (limit[-1] < 600).all()
