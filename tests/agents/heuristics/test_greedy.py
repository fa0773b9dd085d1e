"""Greedy grants the promises that fit, shares out the rest, and leaves alone what needs nothing."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.agents.heuristics.fixed import no_control
from slicepilot.agents.heuristics.greedy import Greedy, allocate
from slicepilot.agents.heuristics.proportional import ProportionalShare
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.rollouts import play as play_scenario
from slicepilot.training.evaluation.scores import violation_s


def column(*values: float) -> np.ndarray:
    return np.asarray(values, np.float32)[:, None]


def test_promises_are_granted_by_weight_per_need_while_they_fit() -> None:
    granted, given_ = allocate(
        need=column(60, 30, 30, 5),
        demand=column(60, 30, 30, 5),
        weight=column(3, 1, 2, 1),
        capacity=np.asarray([100], np.float32),
    )
    # By weight per need: the last (0.2), the third (0.07), the first (0.05), and for the second nothing is left.
    assert granted[:, 0].tolist() == [True, False, True, True]
    np.testing.assert_allclose(given_[:, 0], [60, 5, 30, 5], rtol=1e-5)


def test_a_promise_that_does_not_fit_is_passed_over_for_one_that_does() -> None:
    granted, _ = allocate(column(90, 50, 40), column(90, 50, 40), column(9, 1, 0.5), np.asarray([60], np.float32))
    assert granted[:, 0].tolist() == [False, True, False]


needs = st.lists(st.floats(0, 100, width=32), min_size=2, max_size=6)


@given(need=needs, more=needs, capacity=st.floats(1, 300, width=32))
def test_nobody_gets_more_than_is_wanted_or_there(need: list[float], more: list[float], capacity: float) -> None:
    count = min(len(need), len(more))
    low = column(*need[:count])
    demand = low + column(*more[:count])
    granted, given_ = allocate(low, demand, np.ones_like(low), np.asarray([capacity], np.float32))
    assert (given_ <= demand * 1.001 + 1e-3).all()
    assert given_.sum() <= capacity * 1.001 + 1e-2
    assert (given_ >= low * granted - 1e-3).all()


def test_nothing_is_limited_where_everything_fits(light: Any, play: Any) -> None:
    for knobs in play(Greedy(egress=True), light).knobs[5:]:
        assert np.isinf(knobs.cpu_limit_mcpu).all()
        assert np.isinf(knobs.egress_mbps).all()
        assert (knobs.nice == 0).all()


def test_the_slice_of_the_highest_weight_is_kept(contended: Any, play: Any) -> None:
    before, after = play(no_control(), contended, 4), play(Greedy(), contended, 4)
    assert after.violated[0].max() < 0.1 * before.violated[0].min()


def broken_s(agent: Any, scenario: Scenario) -> float:
    """Broken seconds by weight, in the mean over four lanes."""
    played = play_scenario(agent, scenario, 4, 0)
    weight = played.slices.column("weight")
    return float((violation_s(played) * weight / weight.sum()).sum(axis=0).mean())


@pytest.mark.parametrize("name", ["slice-churn", "multi-promise", "edge-server", "application-mix"])
def test_more_promises_are_kept_than_by_proportional_shares(name: str) -> None:
    scenario = Scenario.from_yaml(name)
    assert broken_s(Greedy(), scenario) < 0.7 * broken_s(ProportionalShare(), scenario)


def test_a_short_uplink_is_divided_by_shaping_and_less_well_by_cpu() -> None:
    scenario = Scenario.from_yaml("link-degradation")
    shaped, limited, free = (broken_s(agent, scenario) for agent in (Greedy(egress=True), Greedy(), no_control()))
    assert shaped < 0.5 * limited
    assert limited < free
