"""`slicepilot.make`: the environment of a scenario without its id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym

from slicepilot.env import ENV_ID, LIVE_ENV_ID
from slicepilot.env.arrays import FloatArray


def make(
    scenario: str | Path = "andrade-ramp", *, live: bool = False, **options: Any
) -> gym.Env[FloatArray, FloatArray]:
    """The Gymnasium environment of a scenario, as ``gym.make("slicepilot/SliceControl-v0", scenario=...)`` makes it.

    Args:
        scenario: a shipped name (``slicepilot simulate --help``) or a YAML file.
        live: on real UPFs of the testbed, as root, instead of the simulator.
        options: others of `SliceEnv`, for instance ``control_period_s`` or ``reward``, and of `gymnasium.make`.

    Raises:
        ConfigError: unknown names, bad values.
    """
    made: gym.Env[FloatArray, FloatArray] = gym.make(LIVE_ENV_ID if live else ENV_ID, scenario=str(scenario), **options)
    return made
