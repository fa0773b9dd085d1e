"""Broken promises cost more while there are more than the rule breaks, and less while there are fewer."""

import dataclasses

import numpy as np
import pytest

from slicepilot.env.simulator.backend import SimulatorBackend
from slicepilot.env.simulator.mixture import MixtureEpisodes
from slicepilot.training.online.config import TrainingConfig
from slicepilot.training.online.constraint import BrokenPromises, broken_share
from slicepilot.training.online.train import make_env


def settled(broken: float, steps: int = 20_000) -> BrokenPromises:
    constraint = BrokenPromises(over_rule=0.8, rule=0.1, multiplier=5.0)
    for _ in range(steps):
        constraint(np.full(4, broken, np.float32))
    return constraint


def test_the_multiplier_follows_the_rule() -> None:
    assert settled(0.2).multiplier == settled(0.2).most
    assert settled(0.01).multiplier == settled(0.01).least
    assert settled(0.08, steps=1).multiplier == pytest.approx(5.0)


def test_what_it_costs_is_in_proportion() -> None:
    constraint = BrokenPromises(over_rule=1.0, rule=0.5, multiplier=4.0, rate=0.0)
    np.testing.assert_allclose(constraint(np.asarray([0.0, 0.5, 1.0], np.float32)), [0.0, 2.0, 4.0])


def test_it_goes_on_where_it_was() -> None:
    first = settled(0.15, steps=300)
    second = BrokenPromises(over_rule=0.8, rule=0.1)
    second.restore(first.state())
    assert (second.multiplier, second.average) == (first.multiplier, first.average)


def test_broken_is_the_weight_of_broken_promises_among_those_present() -> None:
    backend = SimulatorBackend(MixtureEpisodes.from_yaml("wide"), 16)
    telemetry = backend.reset(0)
    context = backend.context
    perfect = dataclasses.replace(telemetry, slices=telemetry.slices.copy())
    perfect.slices[1] = perfect.slices[0]
    perfect.slices[3] = 0
    np.testing.assert_array_equal(broken_share(perfect, context), 0)
    perfect.slices[3] = 1e9
    np.testing.assert_allclose(broken_share(perfect, context), telemetry.valid.any(axis=0), rtol=1e-6)


def test_the_rule_is_measured_before_training() -> None:
    config = TrainingConfig.from_yaml("guided").override(num_envs=128, phase_groups=2, copies=2)
    env = make_env(config)
    env.constrain(0.75, seed=0)
    assert env.constraint is not None
    assert 0 < env.constraint.rule < 1
    env.reset()
    before = env.constraint.average
    env.step_async(np.zeros((128, len(env.slices), 3), np.float32))
    env.step_wait()
    assert before is None
    assert env.constraint.average is not None
    assert env.take_means()["reward"] > 0


def test_departures_cost_their_mean_square() -> None:
    config = TrainingConfig.from_yaml("guided").override(num_envs=128, phase_groups=1, copies=1)
    rewards = []
    for cost in (0.0, 2.0):
        env = make_env(config.override(departure_cost=cost), seed=3, scale=False)
        env.reset()
        departures = np.zeros((128, len(env.slices), 3), np.float32)
        departures[..., 1] = 0.3
        env.step_async(departures)
        rewards.append(env.step_wait()[1])
    np.testing.assert_allclose(rewards[0] - rewards[1], 2.0 * 0.3**2 / 3, rtol=1e-3)
