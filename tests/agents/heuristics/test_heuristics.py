from typing import Any

import numpy as np
import pytest

from slicepilot.agents.heuristics.fixed import no_control
from slicepilot.agents.heuristics.proportional import ProportionalShare
from slicepilot.agents.heuristics.reactive import ReactiveSla
from tests.agents.played import loads, play


def test_reactive_control_saves_the_priority_slice(contended: Any) -> None:
    before, after = play(no_control(), contended, 4), play(ReactiveSla(), contended, 4)
    assert before.violated[0].min() > 60
    assert after.violated[0].max() < 0.25 * before.violated[0].min()
    assert after.returns.min() > before.returns.max()


def test_reactive_control_leaves_slices_alone_that_keep_their_promises(light: Any) -> None:
    played = play(ReactiveSla(), light)
    assert all((knobs.nice == 0).all() for knobs in played.knobs)
    assert all(np.isinf(knobs.cpu_limit_mcpu).all() for knobs in played.knobs)


def test_reactive_control_gives_back_what_it_took() -> None:
    run = loads([150.0, 200.0, 200.0, 200.0, 200.0], 1200, join_s=20.0)
    original = run.draw

    def draw(lanes: int, rng: np.random.Generator) -> Any:
        episode = original(lanes, rng)
        episode.traffic.end_s[0, 1:] = 60.0
        return episode

    run.draw = draw
    knobs = play(ReactiveSla(), run, 1).knobs
    assert np.isfinite(knobs[55].cpu_limit_mcpu[1:]).all()
    assert np.isinf(knobs[-1].cpu_limit_mcpu).all()
    assert (knobs[-1].nice == 0).all()


@pytest.mark.parametrize(("period_s", "steps"), [(0.002, 2000), (0.1, 600), (10.0, 30), (30.0, 20)])
def test_reactive_control_helps_at_any_control_period(period_s: float, steps: int) -> None:
    run = loads([150.0, 200.0, 200.0, 200.0, 200.0], steps, period_s=period_s, join_s=0.1 * steps * period_s)
    before, after = play(no_control(), run), play(ReactiveSla(), run)
    assert after.violated[0].mean() < 0.6 * before.violated[0].mean()


def test_proportional_share_follows_weight_and_demand() -> None:
    run = loads([100.0, 200.0, 50.0, 200.0, 200.0], 40)
    knobs = play(ProportionalShare(node_share=0.5), run).knobs[-1]
    limit = knobs.cpu_limit_mcpu.mean(axis=1)
    assert limit[0] == 1000  # ten times the weight: all that its one thread can use
    assert limit[1] == pytest.approx(4 * limit[2], rel=0.25)
    assert limit.sum() == pytest.approx(2000, rel=0.02)
