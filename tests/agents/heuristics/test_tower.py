"""Tower, the contextual bandit above Captain: groups, steps, exploring, and what it learns to choose."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slicepilot.agents.heuristics.captain import Captain
from slicepilot.agents.heuristics.tower import (
    LADDER,
    NUM_FEATURES,
    CaptainTower,
    TowerConfig,
    TowerPrior,
    upper_of_two,
)
from slicepilot.env.knobs import Knobs
from slicepilot.env.telemetry import Telemetry
from tests.agents.played import play, slice_set
from tests.loads import context_of

KNOWS_NOTHING = TowerPrior(
    grouping="weight",
    mean=(0.0,) * NUM_FEATURES,
    precision=tuple(tuple(row) for row in (1e-3 * np.eye(NUM_FEATURES)).tolist()),
    provenance={},
)


def learn(slices: Any, keeps: Callable[[np.ndarray], np.ndarray], agent: CaptainTower, steps: int = 300) -> np.ndarray:
    """Let Tower choose on a node where limits hold the less the higher the targets are, and where ``keeps`` says from
    the targets (S,) which promises are kept; the targets of the last fifty steps, (50, S)."""
    context = context_of(slices)
    agent.reset(slices, context, 1)
    chosen = []
    for _ in range(steps):
        for _ in range(int(agent.step_periods[0])):
            target = agent.target_ratio[:, 0] if chosen else np.zeros(len(slices))
            telemetry = Telemetry.empty(len(slices))
            telemetry.slices[0] = 10.0
            telemetry.slices[1] = np.where(keeps(target), 10.0, 8.0)[:, None]
            telemetry.slices[5] = 200.0
            held = np.asarray(1000.0 * (1.0 - target), np.float32)[:, None]
            agent.decide(telemetry, Knobs.of(held, 0 * held, np.inf * np.ones_like(held)))
        chosen.append(agent.target_ratio[:, 0].copy())
    return np.asarray(chosen[-50:])


def test_takes_the_cheaper_target_while_promises_are_kept() -> None:
    targets = learn(slice_set(2), lambda target: np.ones(len(target), np.bool_), CaptainTower(KNOWS_NOTHING))
    assert np.median(targets, axis=0).tolist() == pytest.approx([LADDER[-1]] * 2)


def test_gives_way_where_that_breaks_a_promise() -> None:
    def keeps(target: np.ndarray) -> np.ndarray:
        return np.asarray([target[0] < 0.08, True])

    targets = learn(slice_set(2), keeps, CaptainTower(KNOWS_NOTHING))
    first, second = np.median(targets, axis=0)
    assert first < 0.08
    assert second == pytest.approx(LADDER[-1])


def test_only_neighbours_of_the_best_are_explored() -> None:
    slices = slice_set(2)
    agent = CaptainTower(tower=TowerConfig(explore=0.5))
    agent.reset(slices, context_of(slices, steps=1200), 3)
    off = 0
    for load in np.linspace(0.1, 1.0, 400):
        before = agent.predict(np.asarray([load]))
        agent._load = np.asarray([load])
        agent._choose(np.ones(1, np.bool_))
        best = divmod(int(np.argmin(before[:, 0])), len(LADDER))
        chosen = agent._chosen[:, 0].tolist()
        distance = abs(best[0] - chosen[0]) + abs(best[1] - chosen[1])
        assert distance <= 1
        off += distance
    assert 140 < off < 260


@pytest.mark.parametrize(
    ("period_s", "steps", "step_s"),
    [(1.0, 600, 10), (1.0, 1200, 20), (1.0, 7200, 60), (0.01, 6000, 10), (15.0, 480, 150), (15.0, 10_000, 900)],
)
def test_a_step_is_a_sixtieth_of_the_run_within_what_captain_needs(period_s: float, steps: int, step_s: float) -> None:
    agent = CaptainTower()
    agent.reset(slice_set(2), context_of(slice_set(2), period_s=period_s, steps=steps), 0)
    assert agent.step_periods[0] * period_s == pytest.approx(step_s, rel=0.01)


def test_groups_are_those_of_least_squares() -> None:
    rng = np.random.default_rng(0)
    for count in (2, 3, 5, 8):
        values = rng.exponential(1.0, (count, 20))
        upper = upper_of_two(values)
        for lane in range(20):
            ours, chosen = values[:, lane], upper[:, lane]
            parts = (part for n in range(1, count) for part in itertools.combinations(range(count), n))
            splits = (np.isin(np.arange(count), part) for part in parts)
            least = min(ours[part].var() * part.sum() + ours[~part].var() * (~part).sum() for part in splits)
            assert ours[chosen].var() * chosen.sum() + ours[~chosen].var() * (~chosen).sum() == pytest.approx(least)
            assert ours[chosen].min() > ours[~chosen].max()
    assert upper_of_two(np.ones((1, 3))).all()
    assert upper_of_two(np.ones((4, 3))).all()


def test_a_promise_late_in_more_than_a_hundredth_of_a_step_costs_more_than_any_cpu() -> None:
    slices = slice_set(2)  # of weights 10 and 1, bounds of 50 and 500 ms
    agent = CaptainTower(KNOWS_NOTHING)
    agent.steps = []
    agent.reset(slices, context_of(slices), 0)
    knobs = Knobs.of(np.full((2, 1), 500.0), np.zeros((2, 1)), np.full((2, 1), np.inf))
    for period in range(21):
        telemetry = Telemetry.empty(2)
        telemetry.slices[3] = 1000.0
        if period == 15:
            telemetry.slices[3, 1] = 1e6  # half of its promise is lacking, in one of ten periods
        agent.decide(telemetry, knobs)
    kept, late = [step.cost for step in agent.steps]
    # Half a CPU each of four; then the second slice costs 2 + 0.5 / 10, at a share of 1 in 11.
    assert kept == pytest.approx(0.25)
    assert late == pytest.approx((10 * 0.25 + 2.05) / 11)


def test_keeps_promises_about_as_captain_alone_does(light: Any, contended: Any) -> None:
    light.steps = 300
    for loads, slack in ((light, 6), (contended, 6)):
        alone, both = play(Captain(), loads, 4), play(CaptainTower(), loads, 4)
        assert both.violated.sum(axis=0).mean() <= 1.05 * alone.violated.sum(axis=0).mean() + slack
