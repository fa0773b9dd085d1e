"""A slice as an agent: PettingZoo's and RLlib's own checks pass, and the game is the single environment's."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("pettingzoo")

from slicepilot.configs import ConfigError
from slicepilot.env.environments.parallel_env import SliceParallelEnv
from slicepilot.env.environments.slice_env import SliceEnv
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario

SHORT = replace(Scenario.from_yaml("multi-promise"), duration_s=8.0, control_period_s=0.2)


def short(kind: Any, **arguments: Any) -> Any:
    return kind(backend=SimulatorBackend(ScenarioRuns(SHORT)), **arguments)


def test_it_passes_pettingzoos_tests(capsys: pytest.CaptureFixture[str]) -> None:
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(short(SliceParallelEnv), num_cycles=100)
        parallel_seed_test(lambda: short(SliceParallelEnv), num_cycles=20)
    assert "Passed Parallel API test" in capsys.readouterr().out


def test_it_passes_rllibs_check() -> None:
    pytest.importorskip("ray.rllib")
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
    from ray.rllib.utils.pre_checks.env import check_multiagent_environments

    check_multiagent_environments(ParallelPettingZooEnv(short(SliceParallelEnv)))


def test_it_is_the_single_environment_row_by_row() -> None:
    game, single = short(SliceParallelEnv, render_mode="ansi"), short(SliceEnv, render_mode="ansi")
    names = SHORT.slice_set().names
    assert tuple(game.possible_agents) == tuple(names)
    seen, infos = game.reset(seed=3)
    expected, _ = single.reset(seed=3)
    rng, twin, truncated = np.random.default_rng(0), None, False
    for n in range(40):
        np.testing.assert_array_equal(np.concatenate([seen[name] for name in names]), expected)
        np.testing.assert_array_equal(game.state(), expected)
        assert all(game.observation_space(name).contains(seen[name]) for name in names)
        action = rng.uniform(-1, 1, (6, 3)).astype(np.float32)
        actions = dict(zip(names, action, strict=True))
        if n == 20:
            twin = copy.deepcopy(game)
        seen, rewards, ended, cut, infos = game.step(actions)
        if n == 20 and twin is not None:
            assert twin.step(actions)[1] == rewards
        expected, reward, _, truncated, info = single.step(action)
        assert set(rewards.values()) == {reward}
        assert set(cut.values()) == {truncated}
        assert not any(ended.values())
        assert infos[names[2]] == info
        assert game.render() == single.render()
    assert truncated
    assert game.agents == []
    with pytest.raises(gym.error.ResetNeeded, match=r"^step without agents"):
        game.step({})


def test_what_is_missing_or_not_for_it_is_said() -> None:
    game = short(SliceParallelEnv)
    game.reset(seed=0)
    some = {name: np.zeros(3, np.float32) for name in game.agents[:4]}
    with pytest.raises(ValueError, match=rf"^action: none for {game.agents[4]}, {game.agents[5]}: expected"):
        game.step(some)
    with pytest.raises(ConfigError, match=r"^flat_actions: "):
        SliceParallelEnv(flat_actions=True)
    code = (
        "import sys; sys.modules['pettingzoo'] = None\n"
        "from slicepilot.configs import ConfigError\n"
        "try: import slicepilot.env.environments.parallel_env\n"
        "except ConfigError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "SliceParallelEnv needs the package pettingzoo: install slicepilot[pettingzoo]\n"
