"""Plays policies, whoever has trained them: on Pendulum-v1, and on a scenario in the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from slicepilot.env.environments.vector_env import ControlLoop
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario

Floats = npt.NDArray[np.float32]
Act = Callable[[Floats], npt.NDArray[Any]]
"""Observations (L, D) to actions (L, K) in [-1, 1]."""
PENDULUM_TORQUE = 2.0


def play_pendulum(
    act: Act, seed: int, episodes: int = 50, rewards: list[Any] | None = None, last: list[Any] | None = None
) -> npt.NDArray[np.float64]:
    """Returns (episodes,); what is earned in each step is appended to ``rewards``, the last observation to ``last``."""
    lanes = gym.make_vec("Pendulum-v1", episodes, vectorization_mode="sync")
    observation, _ = lanes.reset(seed=seed)
    total, final = np.zeros(episodes), False
    while not final:
        observation, reward, _, truncated, _ = lanes.step(np.asarray(act(observation), np.float32) * PENDULUM_TORQUE)
        total += reward
        final = bool(truncated.all())
        if rewards is not None:
            rewards.append(reward)
    lanes.close()
    if last is not None:
        last.append(observation)
    return total


def play_scenario(
    act: Act, scenario: Scenario, weights: RewardWeights, seed: int, runs: int
) -> npt.NDArray[np.float64]:
    """Mean reward per period (runs,); observations are tables row by row, actions (L, S * 3)."""
    backend = SimulatorBackend(ScenarioRuns(scenario), runs)
    loop = ControlLoop(backend, weights)
    observation, total, steps = loop.reset(seed), np.zeros(runs), 0
    ended = False
    while not ended:
        action = np.asarray(act(observation.reshape(runs, -1)), np.float32)
        observation, earned, ended = loop.step(action.reshape(runs, len(backend.slices), -1))
        total += earned
        steps += 1
    backend.close()
    return total / steps
