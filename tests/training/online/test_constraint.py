"""Broken promises cost more while there are more than the rule breaks, and less while there are fewer."""

import dataclasses
import math

import numpy as np
import pytest

from slicepilot.agents.heuristics.queue_greedy import QueueGreedy
from slicepilot.agents.learned.guide import NUM_CORRECTIONS
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.backend import SimulatorBackend
from slicepilot.env.simulator.mixture import MixtureEpisodes
from slicepilot.training.evaluation.rollouts import collect_rollout
from slicepilot.training.online.config import TrainingConfig
from slicepilot.training.online.constraint import FLOOR, BrokenPromises, BrokenShare, log_share
from slicepilot.training.online.train import make_env
from slicepilot.training.online.vec_env import rule_log_share

RULE = math.log(0.1 + FLOOR)


def settled(broken: float, runs: int = 400) -> BrokenPromises:
    """After runs of ten periods in four lanes, all of them with this share of broken promises."""
    constraint = BrokenPromises(over_rule=0.8, rule=RULE, horizon_lanes=40.0)
    for _ in range(runs):
        for period in range(10):
            constraint(np.full(4, broken, np.float32), np.full(4, period == 9))
    return constraint


def test_the_multiplier_follows_the_rule() -> None:
    assert settled(0.2).multiplier == settled(0.2).most
    assert settled(0.01).multiplier == settled(0.01).least
    assert settled(0.2).over == pytest.approx(0.21 / 0.11, rel=1e-2)
    start = BrokenPromises(over_rule=0.8, rule=RULE).multiplier
    as_asked = 0.8 * math.exp(RULE) - float(FLOOR)
    assert settled(as_asked, runs=1).multiplier == pytest.approx(start, rel=0.05)


def test_a_break_costs_more_where_little_else_breaks() -> None:
    """What is held down is the mean logarithm, and a part of a sum weighs by the inverse of that sum."""
    constraint = BrokenPromises(over_rule=1.0, rule=RULE, copies=1, rate=0.0, multiplier=1.0)
    never, ends = np.asarray([0.0, 1.0], np.float32), np.zeros(2, np.bool_)
    for _ in range(200):
        constraint(never, ends)
    rare, usual = constraint(np.ones(2, np.float32), ends)
    assert rare > 10 * usual
    assert usual == pytest.approx(1.0, rel=0.1)


def test_copies_are_one_deployment() -> None:
    constraint = BrokenPromises(over_rule=1.0, rule=RULE, groups=1, copies=2, rate=0.0)
    broken = np.asarray([1.0, 0.0, 0.0, 1.0], np.float32)  # (copy, input): each input breaks in one of its copies
    cost = [constraint(broken, np.zeros(4, np.bool_)) for _ in range(50)][-1]
    assert cost[0] == pytest.approx(cost[3])
    assert cost[1] == cost[2] == 0.0


def test_it_goes_on_where_it_was() -> None:
    first = settled(0.15, runs=30)
    second = BrokenPromises(over_rule=0.8, rule=RULE)
    second.restore(first.state())
    assert (second.multiplier, second.average) == (first.multiplier, first.average)


def test_broken_is_the_weight_of_broken_promises_among_those_present() -> None:
    backend = SimulatorBackend(MixtureEpisodes.from_yaml("wide"), 16)
    telemetry = backend.reset(0)
    context = backend.context
    perfect = dataclasses.replace(telemetry, slices=telemetry.slices.copy())
    perfect.slices[1] = perfect.slices[0]
    perfect.slices[3] = 0
    share = BrokenShare(context)
    np.testing.assert_array_equal(share(perfect), 0)
    perfect.slices[3] = 1e9
    np.testing.assert_allclose(share(perfect), telemetry.valid.any(axis=0), rtol=1e-6)


def test_the_rule_is_played_to_be_compared_with() -> None:
    config = TrainingConfig.from_yaml("guided").override(num_envs=128, phase_groups=2, copies=2)
    rule = rule_log_share(SimulatorBackend(config.episodes(), 256), seed=0)
    assert math.log(FLOOR) < rule < 0
    # The same as the share that the rule itself breaks on these runs.
    backend = SimulatorBackend(config.episodes(), 256)
    played = collect_rollout(QueueGreedy(), backend, 0, RewardWeights.from_yaml())
    weight = backend.context.promises.weight * played.valid
    share = (weight * played.violated).sum(axis=1) / weight.sum(axis=1)
    assert rule == pytest.approx(float(log_share(share.mean(axis=0)).mean()), abs=0.15)


def test_a_constrained_environment_takes_broken_promises_off_the_reward() -> None:
    config = TrainingConfig.from_yaml("guided").override(num_envs=128, phase_groups=2, copies=2, departure_cost=0.0)
    rewards = []
    for constrained in (False, True):
        env = make_env(config, seed=3, scale=False)
        if constrained:
            env.constrain(0.85, math.log(0.1))
        env.reset()
        env.step_async(np.zeros((128, len(env.slices), NUM_CORRECTIONS), np.float32))
        rewards.append(env.step_wait()[1])
    assert (rewards[1] <= rewards[0]).all()
    assert (rewards[1] < rewards[0] - 0.1).any()


def test_departures_cost_their_mean_square() -> None:
    config = TrainingConfig.from_yaml("guided").override(num_envs=128, phase_groups=1, copies=1)
    rewards = []
    for cost in (0.0, 2.0):
        env = make_env(config.override(departure_cost=cost), seed=3, scale=False)
        env.reset()
        departures = np.zeros((128, len(env.slices), NUM_CORRECTIONS), np.float32)
        departures[..., 1] = 0.3
        env.step_async(departures)
        rewards.append(env.step_wait()[1])
    np.testing.assert_allclose(rewards[0] - rewards[1], 2.0 * 0.3**2 / NUM_CORRECTIONS, rtol=1e-3)
