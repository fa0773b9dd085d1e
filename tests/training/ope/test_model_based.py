"""The identified simulator as a model: exact where it is the node, calibrated where it is not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.agents.heuristics.fixed import FixedAgent
from slicepilot.agents.heuristics.proportional import ProportionalShare
from slicepilot.agents.heuristics.reactive import ReactiveSla
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.env.simulator.backend import SimulatorBackend
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.training.ope.logged import Node
from slicepilot.training.ope.measured_loads import MeasuredLoads, packet_bytes
from slicepilot.training.ope.model_based import Calibration, IdentifiedModel, line

NODE = Hardware.from_yaml(str(Path(__file__).with_name("steady-node.yaml")))


def test_loads_are_as_measured_in_every_lane(log: EpisodeSet) -> None:
    node = Node.of(log)
    episodes = (log.episodes[0], log.episodes[3])
    backend = SimulatorBackend(MeasuredLoads(episodes, node, NODE), 2)
    seen = [backend.reset(0).offered_mbps.copy()]
    seen += [backend.observe().offered_mbps.copy() for _ in range(len(episodes[0]))]
    for lane, episode in enumerate(episodes):
        assert episode.telemetry is not None
        np.testing.assert_allclose(np.stack(seen)[..., lane], episode.telemetry[:, 0], rtol=0.02, atol=0.3)


def test_packets_are_as_long_as_their_costs_say(log: EpisodeSet) -> None:
    """Also under random egress rates, which drop what has cost CPU time."""
    node = Node.of(log)
    np.testing.assert_allclose(packet_bytes(log.episodes, node, NODE), 1400, rtol=0.03)
    dear = packet_bytes(log.episodes, node, replace(NODE, upf_cost_us=2 * NODE.upf_cost_us))
    np.testing.assert_allclose(dear, 2800, rtol=0.03)


def test_on_its_own_node_the_model_is_right(log: EpisodeSet, policies: list[FixedAgent], record: Any) -> None:
    """Policies that have not acted, under the very loads of the log: arrivals belong to seed and number of runs."""
    model = IdentifiedModel(EpisodeSet(log.episodes[:8], log.facts), Node.of(log), NODE)
    assert "random" not in model.episodes.behaviours
    agents = [*policies, ProportionalShare(), ReactiveSla()]
    truth = record(agents)
    inside = 0
    for agent in agents:
        result, visited = model.estimate(agent)
        true = float(np.mean([episode.rewards.mean() for episode in truth.of(agent.name)]))
        assert result.value == pytest.approx(true, abs=0.08)
        inside += result.low <= true <= result.high
        assert visited.shape[1:] == log.episodes[0].observations.shape[1:]
    assert inside >= len(agents) - 1


def test_on_another_node_the_error_is_known(log: EpisodeSet, policies: list[FixedAgent], record: Any) -> None:
    """The model believes in a node whose threads wait long; what it says is off by more, and it says so."""
    slow = replace(NODE, upf_cost_us=1.3 * NODE.upf_cost_us, wake_wait_ms=30.0)
    model = IdentifiedModel(log, Node.of(log), slow)
    off = model.calibration
    assert off is not None
    plain = float(np.sqrt(np.mean(np.square(list(off.by_behaviour.values())))))
    assert plain > 0.1
    right = IdentifiedModel(log, Node.of(log), NODE)
    truth = record(policies)
    for policy in policies:
        true = float(np.mean([episode.rewards.mean() for episode in truth.of(policy.name)]))
        wide, narrow = model.estimate(policy)[0], right.estimate(policy)[0]
        assert wide.high - wide.low > narrow.high - narrow.low
        assert wide.low <= true <= wide.high


def test_without_telemetry_there_are_no_loads(log: EpisodeSet) -> None:
    blind = EpisodeSet((replace(log.episodes[0], telemetry=None),), log.facts)
    with pytest.raises(ConfigError, match="telemetry = None: expected"):
        IdentifiedModel(blind, Node.of(log), NODE)


ALONE = np.arange(6)
"""Groups of one behaviour each."""


def test_the_line_and_what_it_misses() -> None:
    said = np.arange(1.0, 7.0)
    # The ridge: as much as the mean pair, and as a pair that is 0.1 off.
    spread = float(np.square(said - 3.5).sum())
    ridge = spread / 6 + 0.01
    slope = (0.5 * spread + ridge) / (spread + ridge)
    assert line(said, 0.5 * said + 1) == pytest.approx((2.75 - slope * 3.5, slope))
    assert 0.5 < slope < 0.6
    shifted = Calibration.of(said, said - 0.7, "abcdef", ALONE)
    assert (shifted.intercept, shifted.slope, shifted.error) == pytest.approx((-0.7, 1.0, 0.0))
    assert shifted(np.asarray([7.0])) == pytest.approx(6.3)
    # All alike: only the mean difference is known. Worse where the model says better: no order is left.
    assert line(np.full(6, 2.0), np.arange(6.0)) == pytest.approx((0.5, 1.0))
    assert line(said, -2.0 * said)[1] == 0.0


def test_the_error_is_that_on_behaviours_the_line_has_not_seen() -> None:
    said, earned = np.arange(1.0, 7.0), np.asarray([1.0, 2.0, 3.0, 4.0, 5.0, 9.0])
    bent = Calibration.of(said, earned, "abcdef", ALONE)
    assert bent.by_behaviour == pytest.approx({"a": 0, "b": 0, "c": 0, "d": 0, "e": 0, "f": -3})
    missed = []
    for out in range(6):
        intercept, slope = line(np.delete(said, out), np.delete(earned, out))
        missed.append(intercept + slope * said[out] - earned[out])
    assert missed[5] == pytest.approx(-3.0)
    assert bent.error == pytest.approx(np.sqrt(np.mean(np.square(missed))))
    assert bent.error > np.sqrt(np.mean(np.square(bent(said) - earned))), "more than of those it has seen"


def test_behaviours_that_do_the_same_are_one_pair() -> None:
    """Left out together, as each predicts the other."""
    said, earned = np.asarray([1.0, 2.0, 3.0, 3.0, 3.0]), np.asarray([1.0, 2.0, 5.0, 5.0, 5.0])
    grouped = Calibration.of(said, earned, "abcde", np.asarray([0, 1, 2, 2, 2]))
    once = Calibration.of(said[:3], earned[:3], "abc", np.arange(3))
    assert (grouped.intercept, grouped.slope, grouped.error) == (once.intercept, once.slope, once.error)
    assert grouped.groups == 3
    assert grouped.error > Calibration.of(said, earned, "abcde", np.arange(5)).error
    # Without a second group there is no estimate but the error of the model.
    single = Calibration.of(said[2:], earned[2:], "cde", np.zeros(3, np.int64))
    assert single.error == pytest.approx(2.0)
    assert single(np.asarray([3.0])) == pytest.approx(5.0)
