"""Train a policy with memory: RecurrentPPO (LSTM) of sb3-contrib, on actions as a vector.

pip install "slicepilot[train]" sb3-contrib
python examples/recurrent_ppo.py --steps 100000 --out recurrent.zip
"""

import argparse

from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

import slicepilot.env  # noqa: F401 (registers the environments)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--scenario", default="flash-crowd")
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--rollout", type=int, default=128, help="steps of each environment between updates")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", default="recurrent.zip")
options = parser.parse_args()

arguments = {"scenario": options.scenario, "flat_actions": True}
envs = make_vec_env("slicepilot/SliceControl-v0", n_envs=4, seed=options.seed, env_kwargs=arguments)
model = RecurrentPPO(
    "MlpLstmPolicy",
    envs,
    n_steps=options.rollout,
    batch_size=128,
    gamma=0.9,
    policy_kwargs={"lstm_hidden_size": 64, "enable_critic_lstm": False, "shared_lstm": True},
    seed=options.seed,
    device="cpu",
)
model.learn(options.steps)
model.save(options.out)

judged = make_vec_env("slicepilot/SliceControl-v0", seed=10_000, env_kwargs=arguments)
mean, spread = evaluate_policy(RecurrentPPO.load(options.out, device="cpu"), judged, n_eval_episodes=2)
print(f"return of {options.out}: {mean:.2f} +- {spread:.2f}")
