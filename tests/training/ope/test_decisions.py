"""Decisions as steps, and what critics are asked about them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from slicepilot.agents.heuristics.fixed import FixedAgent
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.training.ope.critic_inputs import NUM_INPUTS
from slicepilot.training.ope.decisions import PooledCritic, constant_behaviours, decisions_of, fitted_q
from slicepilot.training.ope.fitted_q import FittedQConfig
from slicepilot.training.ope.logged import Node, watch


def test_decisions_are_what_was_held(log: EpisodeSet) -> None:
    node = Node.of(log)
    explored = log.of("random")
    made = decisions_of(explored, node)
    length = len(explored.episodes[0])
    assert len(made.reward) == len(explored) * (length // 10 - 1)
    first = explored.episodes[0]
    np.testing.assert_array_equal(made.start[:3], [0, 10, 20])
    np.testing.assert_array_equal(made.settled[:3], [10, 20, 30])
    np.testing.assert_array_equal(made.next_start[:2], made.start[1:3])
    assert made.reward[1] == pytest.approx(first.rewards[15:20].mean())
    np.testing.assert_allclose(made.action[1], first.actions[15:20].mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(made.before[1], made.action[0], atol=1e-6)
    # Before the first one there was no control.
    np.testing.assert_allclose(made.before[0][:, [0, 2]], 1.0)
    # The second episode's rows come after the first one's, which has one more than steps.
    assert made.start[length // 10 - 1] == length + 1


def test_settings_are_cut_as_long_as_decisions_hold(log: EpisodeSet) -> None:
    node = Node.of(log)
    both = decisions_of(log, node)
    assert set(np.diff(both.start[both.episode == 0])) == {10}
    alone = decisions_of(log.of("no-control"), node)
    assert set(np.diff(alone.start[alone.episode == 0])) == {10}, "0.1 s in periods of 10 ms"


def test_episodes_that_are_too_short(log: EpisodeSet) -> None:
    first = log.episodes[0]
    short = Episode(
        first.observations[:2],
        first.actions[:1],
        first.rewards[:1],
        first.wanted[:1],
        first.log_density[:1],
        "brief",
    )
    with pytest.raises(ConfigError, match="decisions in a row = 1 at most; expected 2 or more"):
        decisions_of(EpisodeSet((short,), log.facts), Node.of(log))


def test_an_episode_of_held_steps_alone_has_no_decision(log: EpisodeSet) -> None:
    node, own = Node.of(log), log.of("random")
    whole = own.episodes[0]
    assert whole.decisions["held"][1:10].all()
    held = whole.part(1, 10)
    both = decisions_of(EpisodeSet((held, *own), own.facts), node)
    alone = decisions_of(own, node)
    np.testing.assert_array_equal(both.start, alone.start + len(held) + 1)
    np.testing.assert_array_equal(both.reward, alone.reward)


def test_behaviours_around_a_setting_are_left_out_with_it(log: EpisodeSet) -> None:
    result = constant_behaviours(log)
    assert len(result) == 2
    names = [episode.behaviour for episode in log]
    away = {name for name, count in zip(names, result[1].elsewhere, strict=True) if count}
    assert "limited" not in away
    assert "exploring-limited" not in away
    assert {"no-control", "random"} <= away
    own = np.concatenate([episode.rewards for episode in log.of("limited")])
    assert result[1].reward == pytest.approx(own.mean(), rel=1e-5)


def test_critics_do_not_care_for_the_order_of_slices() -> None:
    torch.manual_seed(0)
    inputs = torch.rand(6, 5, NUM_INPUTS)
    inputs[..., -1] = 1.0
    share = torch.tensor([[0.4], [0.15], [0.15], [0.15], [0.15]])
    order = torch.tensor([3, 1, 4, 0, 2])
    critic, turned = (
        PooledCritic(torch.zeros(NUM_INPUTS), torch.ones(NUM_INPUTS), own, 16) for own in (share, share[order])
    )
    turned.load_state_dict({**critic.state_dict(), "share": share[order]})
    torch.testing.assert_close(critic(inputs), turned(inputs[:, order]))
    # An absent slice changes nothing, whatever its other inputs say.
    gone = inputs.clone()
    gone[:, 2] = 0.0
    other = gone.clone()
    other[:, 2, :-1] = 7.0
    torch.testing.assert_close(critic(gone), critic(other))


def test_estimates_are_the_same_every_time_and_close_on_who_acted(log: EpisodeSet) -> None:
    node = Node.of(log)
    config = FittedQConfig(updates=300, members=1, batch=96, width=32)
    again = FixedAgent("again", [np.inf, 200, 200, 200, 200])
    targets = {"again": watch(again, log.episodes, node)}
    torch.manual_seed(1)
    first = fitted_q(log, node, targets, config)["again"]
    torch.manual_seed(2)
    second = fitted_q(replace(log), node, targets, config)["again"]
    assert first == second
    did = np.concatenate([episode.rewards for episode in log.of("limited")]).mean()
    assert first.value == pytest.approx(did, abs=0.3)
    assert first.low < did < first.high
    assert first.diagnostics["held_out_policies"] == 2
