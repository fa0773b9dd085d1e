"""The environments satisfy Gymnasium's and Stable-Baselines3's own checkers, with warnings as errors."""

import warnings

import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from slicepilot.env.slice_env import SliceEnv


@pytest.mark.parametrize("render_mode", [None, "ansi", "rgb_array"])
def test_slice_env_passes_both_checkers(render_mode: str | None) -> None:
    from stable_baselines3.common.env_checker import check_env as sb3_check_env

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sb3_check_env(SliceEnv(render_mode=render_mode), warn=True, skip_render_check=False)
        gymnasium_check_env(SliceEnv(render_mode=render_mode), skip_render_check=True)
