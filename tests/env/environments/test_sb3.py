"""The environments satisfy Gymnasium's and Stable-Baselines3's own checkers, with warnings as errors."""

import warnings
from typing import Any, Literal

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from slicepilot.env.environments.slice_env import SliceEnv
from slicepilot.env.environments.vector_env import SliceVectorEnv
from slicepilot.env.reward import TERMS
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.online.vec_env import ReturnScaler, Sb3VecEnv


@pytest.mark.parametrize("render_mode", [None, "ansi", "rgb_array"])
def test_slice_env_passes_both_checkers(render_mode: Literal["ansi", "rgb_array"] | None) -> None:
    from stable_baselines3.common.env_checker import check_env as sb3_check_env

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sb3_check_env(SliceEnv(render_mode=render_mode), warn=True, skip_render_check=False)
        gymnasium_check_env(SliceEnv(render_mode=render_mode), skip_render_check=True)


def make_vec(groups: int = 2, lanes: int = 3, scale: bool = False, seed: int | None = 0) -> Sb3VecEnv:
    episodes = ScenarioRuns(Scenario.from_yaml("andrade-ramp"), control_period_s=30.0)
    scaler = ReturnScaler(0.9) if scale else None
    return Sb3VecEnv([SimulatorBackend(episodes, lanes) for _ in range(groups)], None, scaler, seed)


def actions(env: Sb3VecEnv, rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(-1, 1, (env.num_envs, *(env.action_space.shape or ()))).astype(np.float32)


def test_ends_of_runs_are_staggered_and_fully_described() -> None:
    env, rng = make_vec(), np.random.default_rng(0)
    env.reset()
    returns = np.zeros(6)
    ends: dict[int, list[int]] = {0: [], 1: []}
    for step in range(1, 90):
        observation, reward, done, infos = env.step(actions(env, rng))
        returns += reward
        assert done[0] == done[1] == done[2]
        assert done[3] == done[4] == done[5]
        for group, lane in ((0, 0), (1, 3)):
            if not done[lane]:
                assert infos[lane] == {}
                continue
            ends[group].append(step)
            info: Any = infos[lane]
            assert info["TimeLimit.truncated"] is True
            assert info["episode"]["r"] == pytest.approx(returns[lane], rel=1e-4)
            assert info["episode"]["t"] >= 0
            assert info["episode"]["l"] == step - max([0, *ends[group][:-1]])
            assert info["terminal_observation"].shape == env.observation_space.shape
            assert not np.array_equal(info["terminal_observation"], np.asarray(observation)[lane])
        returns[done] = 0
    # 40 periods a run; the second group is half a run ahead.
    assert ends == {0: [40, 80], 1: [20, 60]}


def test_a_group_plays_what_the_gymnasium_vector_env_plays() -> None:
    env, rng = make_vec(groups=1), np.random.default_rng(0)
    reference = SliceVectorEnv(
        SimulatorBackend(ScenarioRuns(Scenario.from_yaml("andrade-ramp"), control_period_s=30.0), 3)
    )
    seed = int(np.random.SeedSequence(0).generate_state(1)[0])
    np.testing.assert_array_equal(env.reset(), reference.reset(seed=seed)[0])
    for _ in range(50):
        action = actions(env, rng)
        observation, reward, done, _ = env.step(action)
        expected = reference.step(action)
        np.testing.assert_array_equal(observation, expected[0])
        np.testing.assert_array_equal(reward, expected[1])
        np.testing.assert_array_equal(done, expected[3])


def test_scaled_rewards_are_centred_and_leave_the_figures_alone() -> None:
    plain, scaled = make_vec(), make_vec(scale=True)
    plain.reset()
    scaled.reset()
    rng = np.random.default_rng(0)
    last = []
    for _ in range(200):
        action = actions(plain, rng)
        _, _, _, infos = plain.step(action)
        _, reward, _, scaled_infos = scaled.step(action)
        last.append(reward)
        for info, scaled_info in zip(infos, scaled_infos, strict=True):
            if info:
                assert scaled_info["episode"]["r"] == pytest.approx(info["episode"]["r"])
    assert abs(np.mean(last[100:])) < 0.3
    assert np.abs(last).max() <= 10
    means = plain.take_means()
    assert means == pytest.approx(scaled.take_means())
    assert set(means) == {"reward", *TERMS}


def test_stable_baselines_own_policy_trains_on_it() -> None:
    from stable_baselines3 import PPO

    learner = PPO("MlpPolicy", make_vec(lanes=4), n_steps=32, batch_size=64, n_epochs=1, device="cpu", seed=0)
    learner.learn(512)
    assert learner.num_timesteps == 512
    assert learner.ep_info_buffer
