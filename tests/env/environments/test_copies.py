"""Copies of an environment go on as the original would, and misuse before a run or at its start is said at once."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import NormalizeObservation, RecordEpisodeStatistics

from slicepilot.agents.learned.guide import Guide
from slicepilot.configs import ConfigError
from slicepilot.env import ENV_ID
from slicepilot.env.encoding import PlainCoding
from slicepilot.env.environments.slice_env import SliceEnv
from slicepilot.env.environments.vector_env import SliceVectorEnv
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.online.vec_env import ReturnScaler, Sb3VecEnv

BUSY = replace(Scenario.from_yaml("multi-promise"), duration_s=6.0)


def by_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def wrapped(period_s: float) -> gym.Env[Any, Any]:
    env = gym.make(ENV_ID, scenario="flash-crowd", control_period_s=period_s, render_mode="ansi")
    return RecordEpisodeStatistics(NormalizeObservation(env), buffer_length=3)


def single(period_s: float) -> gym.Env[Any, Any]:
    return SliceEnv(SimulatorBackend(ScenarioRuns(BUSY, control_period_s=period_s)), render_mode="rgb_array")


def same(one: Any, other: Any) -> None:
    """Bit for bit, apart from the seconds that a wrapper measured."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one.keys() - {"t"}:
            same(one[name], other[name])
    elif isinstance(one, (tuple, list)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    else:
        np.testing.assert_array_equal(one, other)


def played(env: Any, steps: int, seed: int) -> list[Any]:
    """What so many steps return, and the first observation of each run that follows the end of another."""
    rng, results = np.random.default_rng(seed), []
    for _ in range(steps):
        stepped = env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))
        results.append(stepped)
        if not isinstance(env, SliceVectorEnv) and stepped[3]:
            results.append(env.reset())
    return results


@pytest.mark.parametrize("how", [copy.deepcopy, by_pickle])
@pytest.mark.parametrize("steps", [0, 1, 5, 300])
@pytest.mark.parametrize("period_s", [0.01, 0.2])
@pytest.mark.parametrize("make", [single, wrapped])
def test_a_copy_goes_on_as_the_original(
    make: Callable[[float], Any], period_s: float, steps: int, how: Callable[[Any], Any]
) -> None:
    """In the middle of a run, and into the next: with the same noise, whichever of the two is played first."""
    env, untouched = make(period_s), make(period_s)
    for each in (env, untouched):
        each.reset(seed=3)
        played(each, steps, seed=1)
    env.action_space.seed(5)
    twin = how(env)
    theirs, ours = played(twin, 40, seed=2), played(env, 40, seed=2)
    same(theirs, ours)
    same(ours, played(untouched, 40, seed=2))
    assert not np.array_equal(ours[0][0], ours[-1][0])
    same(twin.render(), env.render())
    same(twin.action_space.sample(), env.action_space.sample())
    same(twin.reset(), env.reset())
    same(twin.reset(seed=7), env.reset(seed=7))


@pytest.mark.parametrize("how", [copy.deepcopy, by_pickle])
def test_a_copy_that_was_made_before_the_first_run_starts_as_the_original(how: Callable[[Any], Any]) -> None:
    env = single(0.05)
    twin = how(env)
    same(twin.reset(seed=1), env.reset(seed=1))
    same(played(twin, 20, seed=0), played(env, 20, seed=0))


@pytest.mark.parametrize("how", [copy.deepcopy, by_pickle])
@pytest.mark.parametrize("coding", [PlainCoding, Guide])
def test_a_copy_of_a_vector_environment_goes_on_as_the_original(how: Callable[[Any], Any], coding: Any) -> None:
    backend = SimulatorBackend(ScenarioRuns(BUSY, control_period_s=0.02), num_lanes=4, copies=2)
    env = SliceVectorEnv(backend, coding=coding)
    env.reset(seed=3)
    played(env, 30, seed=1)
    twin = how(env)
    theirs, ours = played(twin, 320, seed=2), played(env, 320, seed=2)
    same(theirs, ours)
    assert any(step[3].any() for step in ours)


def lanes(number: int) -> SliceVectorEnv:
    return SliceVectorEnv(SimulatorBackend(ScenarioRuns(BUSY), num_lanes=number))


def test_a_copy_of_the_lanes_of_a_training_run_goes_on_as_the_original() -> None:
    def make() -> Sb3VecEnv:
        return Sb3VecEnv(
            [SimulatorBackend(ScenarioRuns(BUSY, control_period_s=0.2), num_lanes=4, copies=4) for _ in range(2)],
            scaler=ReturnScaler(0.9),
            seed=1,
            guided=True,
            broken_over_reference=0.1,
            copies=4,
        )

    env = make()
    env.reset()
    action = np.full((8, *(env.action_space.shape or ())), 0.2, np.float32)
    for _ in range(7):
        env.step(action)
    twin = copy.deepcopy(env)
    theirs, ours = ([each.step(action)[:3] for _ in range(40)] for each in (twin, env))
    same(theirs, ours)


@pytest.mark.parametrize("mask", [[True, False, False], [False, False, False]])
def test_a_reset_of_some_lanes_is_refused_and_leaves_the_run_as_it_was(mask: list[bool]) -> None:
    env, untouched = lanes(3), lanes(3)
    for each in (env, untouched):
        each.reset(seed=1)
    with pytest.raises(ConfigError, match=r"^options\['reset_mask'\]: True for [01] of 3 lanes: expected .* all True"):
        env.reset(options={"reset_mask": np.array(mask)})
    same(played(env, 3, seed=0), played(untouched, 3, seed=0))


@pytest.mark.parametrize("mask", [[True, True, True], np.ones(2, np.bool_), np.ones(3, np.int64), None])
def test_a_reset_mask_that_is_none_is_refused(mask: Any) -> None:
    with pytest.raises(ConfigError, match=r"^options\['reset_mask'\] = .*: expected a NumPy array of 3 bools"):
        lanes(3).reset(options={"reset_mask": mask})


def test_a_reset_mask_of_all_lanes_resets_all_and_is_left_to_wrappers() -> None:
    env, options = lanes(3), {"reset_mask": np.ones(3, np.bool_)}
    same(env.reset(seed=1, options=options), lanes(3).reset(seed=1))
    assert list(options) == ["reset_mask"]


@pytest.mark.parametrize("make", [lambda: lanes(2), lambda: single(0.2), lambda: gym.make(ENV_ID)])
def test_an_unknown_option_of_a_reset_is_refused(make: Callable[[], Any]) -> None:
    env = make()
    with pytest.raises(ConfigError, match=r"^options: unknown 'scenario': expected one of (none|reset_mask)$"):
        env.reset(options={"scenario": "flash-crowd"})
    env.reset(seed=0, options={})
    env.reset(options=None)


def test_seeds_for_fewer_lanes_than_there_are_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^seed = a list of 2: expected 3 entries, one for each lane$"):
        lanes(3).reset(seed=[1, 2])


@pytest.mark.parametrize("render_mode", ["ansi", "rgb_array"])
def test_what_needs_a_run_says_so_before_the_first(render_mode: Any) -> None:
    env = SliceEnv(SimulatorBackend(ScenarioRuns(BUSY)), render_mode=render_mode)
    for call in (env.render, lambda: env.step(np.zeros((6, 3), np.float32))):
        with pytest.raises(gym.error.ResetNeeded, match=r"^(step|render) before reset: .*: call reset\(\) first$"):
            call()
    with pytest.raises(gym.error.ResetNeeded, match=r"^step before reset: "):
        lanes(2).step(np.zeros((2, 6, 3), np.float32))
