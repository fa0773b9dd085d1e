"""A training loop without a library: the cross-entropy method on a linear policy, a candidate per environment.

Each round draws as many policies as there are environments, plays a run with each, all against the same arrivals, and
moves the distribution to the best of them (Rubinstein and Kroese, The Cross-Entropy Method, Springer 2004).

    python examples/plain_loop.py --rounds 30 --out policy.npz
"""

import argparse

import gymnasium as gym
import numpy as np

import slicepilot.env  # noqa: F401 (registers the environments)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--scenario", default="multi-promise")
parser.add_argument("--rounds", type=int, default=30)
parser.add_argument("--candidates", type=int, default=64)
parser.add_argument("--steps", type=int, help="control periods of a run, else the scenario's")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", help="file for the policy (npz)")
options = parser.parse_args()

envs = gym.make_vec(
    "slicepilot/SliceControl-v0",
    num_envs=options.candidates,
    scenario=options.scenario,
    max_episode_steps=options.steps,
)
slices, knobs = envs.single_action_space.shape
features = envs.single_observation_space.shape[0] // slices
rng = np.random.default_rng(options.seed)

# The same weights for every slice: a row of features and a constant to the three knobs. A first guess: no limits.
mean, deviation = np.zeros((features + 1, knobs)), np.full((features + 1, knobs), 0.5)
mean[-1] = [1, 0, 1]


def play(weights: np.ndarray, seed: int) -> np.ndarray:
    """Returns of a run with the policy (L, features + 1, knobs) of each environment."""
    observation, _ = envs.reset(seed=[seed] * envs.num_envs)  # the same arrivals and noise for all
    returns, over = np.zeros(envs.num_envs), False
    while not over:
        table = observation.reshape(envs.num_envs, slices, features)
        action = table @ weights[:, :-1] + weights[:, -1:]
        observation, reward, _, truncated, _ = envs.step(np.clip(action, -1, 1).astype(np.float32))
        returns, over = returns + reward, bool(truncated.all())
    return returns


elite = max(2, options.candidates // 8)
for n in range(options.rounds):
    candidates = mean + deviation * rng.standard_normal((envs.num_envs, *mean.shape))
    candidates[0] = mean
    returns = play(candidates, int(rng.integers(2**31)))
    best = candidates[np.argsort(returns)[-elite:]]
    mean, deviation = best.mean(axis=0), best.std(axis=0) + 0.02
    print(f"round {n + 1}: the mean policy {returns[0]:.2f}, the best {returns.max():.2f}")
if options.out:
    np.savez(options.out, weights=mean)
envs.close()
