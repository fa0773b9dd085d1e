"""Train PPO of Stable-Baselines3 on the plain environment, evaluate and save it.

pip install "slicepilot[train]"
python examples/sb3_ppo.py --steps 100000 --out policy.zip
"""

import argparse

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

import slicepilot.env  # noqa: F401 (registers the environments)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--scenario", default="multi-promise")
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--rollout", type=int, default=256, help="steps of each environment between updates")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", default="policy.zip")
options = parser.parse_args()

arguments = {"scenario": options.scenario}
envs = make_vec_env("slicepilot/SliceControl-v0", n_envs=8, seed=options.seed, env_kwargs=arguments)
model = PPO("MlpPolicy", envs, n_steps=options.rollout, batch_size=256, gamma=0.9, seed=options.seed, device="cpu")
model.learn(options.steps)
model.save(options.out)

judged = Monitor(gym.make("slicepilot/SliceControl-v0", **arguments))
judged.reset(seed=10_000)  # not a seed of the training
mean, spread = evaluate_policy(PPO.load(options.out, device="cpu"), judged, n_eval_episodes=2)
print(f"return of {options.out}: {mean:.2f} +- {spread:.2f}")
