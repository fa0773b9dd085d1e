import statistics
from typing import Any

import numpy as np
import pytest

from slicepilot.agents.heuristics.captain import Captain
from slicepilot.env.knobs import Knobs
from slicepilot.env.telemetry import Telemetry
from tests.agents.played import loads, play, slice_set
from tests.loads import context_of


def limits(played: Any) -> np.ndarray:
    return np.stack([knobs.cpu_limit_mcpu for knobs in played.knobs])


def test_limits_come_down_to_what_is_used_under_light_load(light: Any) -> None:
    played = play(Captain(), light)
    limit, use = limits(played), np.stack([t.cpu_use_mcpu for t in played.telemetry])
    assert (limit[0] >= 500).all()
    assert (limit[-20:].mean(axis=0) < 2.5 * use[-20:].mean(axis=0)).all()
    assert (limit[-20:].mean(axis=0) > use[-20:].mean(axis=0)).all()
    assert (played.violated <= 3).all()


class Probe:
    """A Captain of one slice and lane, fed by hand: CPU use and throttled ratio of each period."""

    def __init__(self, slices: Any, period_s: float = 1.0) -> None:
        self.agent = Captain()
        self.agent.reset(slices, context_of(slices, period_s=period_s), 0)
        self.size = len(slices)

    def feed(self, use_mcpu: float, throttled: float = 0.0) -> float:
        telemetry = Telemetry.empty(self.size)
        telemetry.slices[5] = use_mcpu
        telemetry.slices[6] = throttled
        return float(self.agent.decide(telemetry, Knobs.none(self.size)).cpu_limit_mcpu[0, 0])

    @property
    def margin(self) -> float:
        return float(self.agent.margin[0, 0])


def test_formulas_on_a_sequence_computed_by_hand() -> None:
    probe = Probe(slice_set(2))
    # Target 0.02, five samples of history that are 0 at first, margin 3. After one of 300: the deviation of a sample of
    # (300, 0, 0, 0, 0) is 300 sqrt(0.2 x 0.8 x 5 / 4) = 134.16; 300 + 2.98 x 134.16 = 699.81.
    assert probe.feed(300.0) == pytest.approx(699.81, abs=0.01)
    # 300 + 2.96 x 164.32 = 786.4, more than 0.9 x 699.81: held, and so are the next two.
    assert [probe.feed(300.0) for _ in range(3)] == pytest.approx([699.81] * 3, abs=0.01)
    # No deviation any more: 300, but not below half.
    assert probe.feed(300.0) == pytest.approx(349.91, abs=0.01)
    assert probe.margin == pytest.approx(2.9)


def published(uses: np.ndarray, throttled: np.ndarray, target: float) -> list[float]:
    """Limits of the rules that the docstring of Captain quotes, for one slice at CFS periods, in plain Python."""
    limit, before, margin, watching, count = 1000.0, 1000.0, 3.0, False, 0.0
    history, limits = [0.0] * 50, []
    for period, (use, hit) in enumerate(zip(uses.tolist(), throttled.tolist(), strict=True), 1):
        history = [*history[1:], use]
        count += hit
        if watching and count / 10 > 3 * target:
            limit = min(2 * before - limit, 1000.0)
            margin += count / 10 - target
            watching, count = False, 0.0
        if period % 10 == 0:
            before, ratio, count, watching = limit, count / 10, 0.0, False
            margin = max(0.0, margin + ratio - target)
            proposal = max(history) + margin * statistics.stdev(history)
            if ratio > 3 * target:
                limit = min(limit * (1 + ratio - 3 * target), 1000.0)
            elif proposal <= 0.9 * limit:
                limit = max(limit / 2, proposal, 100.0)
                watching = limit < before
        limits.append(limit)
    return limits


def test_same_as_the_published_rules_at_cfs_periods() -> None:
    rng = np.random.default_rng(5)
    uses = np.abs(np.repeat(rng.uniform(50, 600, 12), 50) + rng.normal(0, 30, 600)).astype(np.float32)
    # Loads that go up throttle: as often as they are above what the slice had in the last period of one limit.
    throttled = (rng.random(600) < np.repeat(rng.choice([0.0, 0.02, 0.5], 60, p=[0.6, 0.2, 0.2]), 10)).astype(
        np.float32
    )
    probe = Probe(slice_set(2), period_s=0.1)
    ours = [probe.feed(use, hit) for use, hit in zip(uses.tolist(), throttled.tolist(), strict=True)]
    theirs = published(uses, throttled, 0.02)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    rises = np.diff(theirs) > 0
    assert rises.sum() > 10
    assert (np.nonzero(rises)[0] % 10 != 8).any(), "roll-backs between decisions are among them"


def test_slices_of_less_weight_are_allowed_more_throttling() -> None:
    probe = Probe(slice_set(2))
    target = probe.agent.target_ratio[:, 0]
    assert target[0] == pytest.approx(0.02)
    assert target[1] == pytest.approx(0.02 * 10**0.5)


def test_short_control_periods_are_joined_to_cfs_periods() -> None:
    run = loads([60.0, 45.0, 45.0], 4000, period_s=0.002)
    limit = limits(play(Captain(), run))
    lowered = np.nonzero((np.diff(limit, axis=0) < 0).any(axis=(1, 2)))[0] + 1
    # Scaled down at the ends of seconds only; the margin shrinks slowly, so it takes the window of 5 s.
    assert len(lowered) >= 2
    assert (lowered % 500 == 499).all()
    assert (limit[-1] < 600).all()
