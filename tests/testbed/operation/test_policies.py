"""Policies of other libraries in the loop beside real UPFs."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import pytest
from stable_baselines3 import PPO

from tests.command import slicepilot

pytestmark = pytest.mark.realtime

AGENT = """
class Held:
    name, request_mcpu = "held", None

    def reset(self, slices, context, seed): ...

    def decide(self, telemetry, knobs):
        return knobs
"""


def run(policy: str, tmp_path: Path, *options: str, code: int = 0) -> str:
    (tmp_path / "run.yaml").write_text(f"run_root: {tmp_path}/run\nstate_root: {tmp_path}/state\n")
    settings = ("-c", tmp_path / "run.yaml", "--name", "spp", "--scenario", "testbed-contention", "--seconds", "3")
    command = ("run", *settings)
    done = slicepilot(*command, "--policy", policy, "--json", *options, timeout=280)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_a_policy_of_stable_baselines_runs_in_shadow(tmp_path: Path) -> None:
    env = gym.make("slicepilot.env:slicepilot/SliceControl-v0", control_period_s=30.0)
    PPO("MlpPolicy", env, n_steps=16, batch_size=16, device="cpu").learn(16).save(tmp_path / "mine.zip")
    document = json.loads(run(f"sb3:{tmp_path}/mine.zip", tmp_path))
    assert (document["agent"], document["mode"]) == (f"sb3:{tmp_path}/mine.zip", "shadow")
    assert document["loop"]["unusable"] == 0
    assert document["in_charge"]["policy"] > 0.5
    assert document["loop"]["ticks"] > 20
    assert not [*Path("/tmp").glob("slicepilot-policy-*")], "the bundle made of it is gone"


def test_code_acts_only_if_it_is_forced(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(AGENT)
    policy = f"{tmp_path}/mine.py:Held"
    assert "is code, which is not promoted" in run(policy, tmp_path, "--mode", "live", code=2)
    assert json.loads(run(policy, tmp_path, "--mode", "live", "--force"))["loop"]["unusable"] == 0


def test_the_controller_refuses_code_that_brings_pytorch(tmp_path: Path) -> None:
    (tmp_path / "heavy.py").write_text(f"import torch\n{AGENT}")
    assert "imports torch, which a controller never does" in run(f"{tmp_path}/heavy.py:Held", tmp_path, code=2)
