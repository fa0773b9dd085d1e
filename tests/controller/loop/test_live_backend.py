"""A live node as any other backend: its periods, its resets, and the environment over it."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest

from slicepilot.env.environments.slice_env import SliceEnv

from .scripted import found, knobs, live


def test_a_period_is_waited_for_and_reset_takes_all_control_off(groups: list[Path]) -> None:
    weight = found(groups[0])[2]
    with live(groups, period_s=0.05) as backend:
        backend.apply(knobs(300.0, 5))
        start = time.monotonic()
        backend.reset()
        assert time.monotonic() - start >= 0.05
        assert found(groups[0]) == (math.inf, 10_000, weight)
        backend.observe()
        backend.observe()
        assert time.monotonic() - start >= 0.15
        assert backend.context.period_s.tolist() == [pytest.approx(0.05)]
        assert backend.context.logical_cpus.tolist() == [len(os.sched_getaffinity(0))]


def test_the_environment_runs_over_a_live_node(groups: list[Path]) -> None:
    with live(groups) as backend:
        env = SliceEnv(backend=backend)
        observation, _ = env.reset(seed=0)
        assert env.observation_space.contains(observation)
        ended, steps = False, 0
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            assert env.observation_space.contains(observation)
            assert math.isfinite(reward)
            ended, steps = terminated or truncated, steps + 1
        assert steps == 20
