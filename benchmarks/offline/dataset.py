"""Pendulum-v1 as an offline task: what a partly trained SAC had seen and does, among random actions.

After D4RL's medium-replay datasets (Fu et al. 2020, arXiv:2004.07219). Stable-Baselines3's SAC learns for a few
thousand steps; its replay memory and what its policy then does, with noise, are a part of the dataset, the rest are
random actions. The same SAC goes on to become the expert that returns are measured by.

    python benchmarks/offline/dataset.py --out build/pendulum.npz

Arrays: ``observations`` (N + E, 3), every episode's with its last one; ``actions`` (N, 1) in [-1, 1], half the torque;
``rewards`` (N,); ``lengths`` (E,), steps of each episode (none terminates); ``random_return`` and ``expert_return``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from play import Act, Floats, play_pendulum
from stable_baselines3 import SAC

EPISODE_STEPS = 200
TORQUE = 2.0


def main() -> None:
    """Make the dataset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/pendulum.npz"))
    parser.add_argument("--medium-return", type=float, default=-800.0, help="what SAC earns when it counts as medium")
    parser.add_argument("--expert-steps", type=int, default=12_000, help="SAC's training until it counts as an expert")
    parser.add_argument("--played-episodes", type=int, default=60, help="by the medium policy with noise")
    parser.add_argument("--random-episodes", type=int, default=175)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)

    learner = SAC(
        "MlpPolicy",
        gym.make("Pendulum-v1"),
        learning_rate=1e-3,
        learning_starts=600,
        policy_kwargs={"net_arch": [64, 64]},
        seed=options.seed,
        device="cpu",
    )
    rng = np.random.default_rng(options.seed)

    def skill() -> float:
        return float(play_pendulum(lambda o: learner.predict(o, deterministic=True)[0] / TORQUE, seed=1).mean())

    learner.learn(1000)
    while (medium := skill()) < options.medium_return:
        learner.learn(500, reset_num_timesteps=False)
    noisy = record(lambda o: learner.predict(o, deterministic=False)[0] / TORQUE, options.played_episodes, rng)
    parts = [replay(learner), noisy]
    parts.append(record(lambda o: rng.uniform(-1.0, 1.0, (len(o), 1)), options.random_episodes, rng))
    learner.learn(options.expert_steps - learner.num_timesteps, reset_num_timesteps=False)
    expert, random = skill(), play_pendulum(lambda o: rng.uniform(-1.0, 1.0, (len(o), 1)), seed=1)

    arrays: dict[str, Any] = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    arrays |= {"random_return": random.mean(), "expert_return": np.float64(expert)}
    np.savez_compressed(options.out, allow_pickle=False, **arrays)
    print(f"{options.out}: {len(arrays['rewards']):,} steps; returns: random {random.mean():.0f}, ", end="")
    print(f"medium {medium:.0f}, expert {expert:.0f}")


def replay(learner: SAC) -> dict[str, npt.NDArray[Any]]:
    """What the learner has seen so far, in whole episodes."""
    buffer: Any = learner.replay_buffer
    steps = buffer.pos // EPISODE_STEPS * EPISODE_STEPS
    following = buffer.next_observations[:steps, 0].reshape(-1, EPISODE_STEPS, 3)
    observed = buffer.observations[:steps, 0].reshape(-1, EPISODE_STEPS, 3)
    return {
        "observations": np.concatenate([observed, following[:, -1:]], 1).reshape(-1, 3),
        "actions": buffer.actions[:steps, 0],  # SAC keeps them scaled to [-1, 1]
        "rewards": buffer.rewards[:steps, 0],
        "lengths": np.full(len(observed), EPISODE_STEPS),
    }


def record(act: Act, episodes: int, rng: np.random.Generator) -> dict[str, npt.NDArray[Any]]:
    """Episodes side by side."""
    observations: list[Any] = []
    actions: list[Any] = []
    rewards: list[Any] = []

    def noted(observation: Floats) -> Floats:
        action = np.asarray(act(observation), np.float32)
        observations.append(observation)
        actions.append(action)
        return action

    play_pendulum(noted, seed=int(rng.integers(2**31)), episodes=episodes, rewards=rewards, last=observations)
    return {
        "observations": np.stack(observations, 1).reshape(-1, 3),
        "actions": np.stack(actions, 1).reshape(-1, 1),
        "rewards": np.stack(rewards, 1).reshape(-1).astype(np.float32),
        "lengths": np.full(episodes, EPISODE_STEPS),
    }


if __name__ == "__main__":
    main()
