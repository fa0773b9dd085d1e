"""What another policy would have done in logged episodes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.fixed import FixedAgent
from slicepilot.agents.heuristics.proportional import ProportionalShare
from slicepilot.agents.heuristics.reactive import ReactiveSla
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.env.encoding import ObservationEncoder
from slicepilot.env.telemetry import SLICE_FIELDS, Telemetry
from slicepilot.training.ope.logged import Node, alike, same_pods, telemetry_of, watch
from tests.effort import examples

INF = np.inf
FULL_SCALE = np.asarray([9e3, 9e3, 9e6, 9e6, 0.99, 15e3, 0.99, 9e5])


@pytest.mark.parametrize("agent", [ReactiveSla(), ProportionalShare()])
def test_who_acted_would_have_done_what_it_did(agent: Agent, record: Any) -> None:
    """Also an agent with a memory: it is its own run that it watches."""
    own = record([agent])
    node = Node.of(own)
    for episode, wanted in zip(own, watch(agent, own.episodes, node), strict=True):
        assert len(wanted) == len(episode) + 1
        # A nice level is rounded, and what is next to a half may fall to either side.
        off = np.abs(wanted[:-1] - episode.wanted)
        assert np.quantile(off, 0.99) < 1e-3


def test_episodes_of_different_lengths_are_watched_side_by_side(log: EpisodeSet) -> None:
    first, second = log.episodes[:2]
    short = second.part(0, 40)
    node = Node.of(log)
    both = watch(ReactiveSla(), [first, short], node)
    alone = watch(ReactiveSla(), [short], node)
    assert [len(rows) for rows in both] == [len(first) + 1, 41]
    np.testing.assert_allclose(both[1], alone[0], atol=1e-6)


@settings(max_examples=examples(30))
@given(arrays.arrays(np.float64, (8, 5, 3), elements=st.floats(0, 1)), st.integers(0, 2**15 - 1))
def test_figures_behind_observations_come_back(log: EpisodeSet, shares: np.ndarray, there: int) -> None:
    node = Node.of(log)
    valid = np.asarray([there >> n & 1 for n in range(15)], np.bool_).reshape(5, 3)
    figures = (shares * FULL_SCALE[:, None, None]).astype(np.float32)
    telemetry = Telemetry(figures, np.full((2, 3), 0.5, np.float32), np.zeros(3, np.float32), valid)
    encoder = ObservationEncoder(node.context(3, 1))
    result = telemetry_of(encoder.encode(telemetry, np.zeros((3, 5, 3), np.float32)))
    for row, name in enumerate(SLICE_FIELDS):
        np.testing.assert_allclose(result.slices[row], figures[row], rtol=2e-3, atol=1e-2, err_msg=name)
    np.testing.assert_allclose(result.node, telemetry.node)
    np.testing.assert_array_equal(result.valid, valid)


def test_who_does_nearly_the_same_is_one_group(log: EpisodeSet) -> None:
    assert log.behaviours == ("no-control", "limited", "exploring-no-control", "exploring-limited", "random")
    numbers = alike(log)
    assert len(set(numbers)) == 3
    assert numbers[0] == numbers[2]
    assert numbers[1] == numbers[3]


def test_other_pods_are_left_out(log: EpisodeSet) -> None:
    node = Node.of(log)
    other = replace(log.episodes[0], info={**log.episodes[0].info, "request_mcpu": [500, 250, 250, 250, 250]})
    mixed = EpisodeSet((other, *log.episodes[1:]), log.facts)
    assert len(same_pods(mixed, node)) == len(log) - 1
    with pytest.raises(ConfigError, match="on pods of the declared CPU requests"):
        same_pods(EpisodeSet((other,), log.facts), node)


def test_nice_inside_a_pod_is_no_action(log: EpisodeSet) -> None:
    node = Node.of(log)
    inside = FixedAgent("inside", [INF, 250, 250, 250, 250], [-5, 5, 5, 5, 5], nice_scope="process")
    between = FixedAgent("between", [INF, 250, 250, 250, 250], [-5, 5, 5, 5, 5])
    first, second = (watch(agent, log.episodes[:1], node)[0][0] for agent in (inside, between))
    assert not first[:, 1].any()
    np.testing.assert_allclose(second[:, 1], [-0.25, 0.25, 0.25, 0.25, 0.25])
    np.testing.assert_allclose(first[:, 0], second[:, 0])
