"""The programs in ``examples`` run, and what they save can be used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from packaging.requirements import Requirement

import slicepilot.env
from slicepilot.env import ENV_ID

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def run(name: str, folder: Path, *arguments: str) -> str:
    """Output of an example, run as its head says, in a folder of its own."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_plain_loop_learns(tmp_path: Path) -> None:
    shown = run("plain_loop.py", tmp_path, "--rounds", "10", "--steps", "40", "--out", "policy.npz")
    means = [float(found) for found in re.findall(r"the mean policy (\S+),", shown)]
    assert len(means) == 10
    assert np.mean(means[-3:]) > np.mean(means[:3])
    assert np.load(tmp_path / "policy.npz")["weights"].shape == (21, 3)


@pytest.mark.slow
def test_ppo_of_stable_baselines(tmp_path: Path) -> None:
    from stable_baselines3 import PPO

    shown = run("sb3_ppo.py", tmp_path, "--steps", "256", "--rollout", "32")
    assert re.fullmatch(r"return of policy\.zip: \d+\.\d\d \+- \d+\.\d\d\n", shown)
    env = gym.make(ENV_ID, scenario="multi-promise")
    action, _ = PPO.load(tmp_path / "policy.zip", device="cpu").predict(env.reset(seed=0)[0])
    assert env.action_space.contains(action)


@pytest.mark.slow
def test_recurrent_ppo_of_sb3_contrib(tmp_path: Path) -> None:
    pytest.importorskip("sb3_contrib")
    shown = run("recurrent_ppo.py", tmp_path, "--steps", "128", "--rollout", "32")
    assert re.fullmatch(r"return of recurrent\.zip: \d+\.\d\d \+- \d+\.\d\d\n", shown)
    assert (tmp_path / "recurrent.zip").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("agents", [(), ("--agents",)], ids=["node", "slices"])
def test_ppo_of_rllib(tmp_path: Path, agents: tuple[str, ...]) -> None:
    pytest.importorskip("ray.rllib")
    shown = run("rllib_ppo.py", tmp_path, "--iterations", "2", "--batch", "300", "--out", "saved", *agents)
    steps = [int(found) for found in re.findall(r"^iteration \d: (\d+) steps", shown, re.MULTILINE)]
    assert len(steps) == 2
    assert steps[1] > steps[0] >= 300
    assert any((tmp_path / "saved").iterdir())


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_hyperparameters_in_rl_zoos_form_make_a_learner(name: str) -> None:
    """As RL Zoo reads them: strings are expressions, ``lin_`` a schedule, and what is not the learner's goes first."""
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env

    settings: dict[str, Any] = yaml.safe_load((EXAMPLES / "rl_zoo" / f"{name}.yml").read_text())[ENV_ID]
    envs = make_vec_env(ENV_ID, settings.pop("n_envs"), env_kwargs=settings.pop("env_kwargs", None))
    assert settings.pop("n_timesteps") >= 1e5
    settings["policy_kwargs"] = eval(settings["policy_kwargs"])
    rate = settings["learning_rate"]
    settings["learning_rate"] = float(str(rate).removeprefix("lin_"))
    learner = getattr(stable_baselines3, name.upper())(settings.pop("policy"), envs, device="cpu", **settings)
    assert learner.action_space == envs.action_space


def test_the_package_can_be_installed_beside_rllib() -> None:
    """RLlib pins Gymnasium: the pin of its own metadata is in our range, and locked."""
    pins = [Requirement(line) for line in metadata.requires("ray") or [] if line.startswith("gymnasium")]
    [ours] = [Requirement(line) for line in metadata.requires("slicepilot") or [] if line.startswith("gymnasium")]
    [pin] = {str(pin.specifier).removeprefix("==") for pin in pins if "rllib" in str(pin.marker)}
    assert ours.specifier.contains(pin)
    locked = (ROOT / "requirements" / "dev.txt").read_text()
    assert f"\ngymnasium=={pin} " in locked
    assert slicepilot.env.ENV_ID in gym.registry
