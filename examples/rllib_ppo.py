"""Train PPO of RLlib: a policy for the node, or with --agents a policy that every slice follows for itself.

pip install "slicepilot[rllib,pettingzoo]" torch
python examples/rllib_ppo.py --iterations 20 --agents --out checkpoint
"""

import argparse
from pathlib import Path
from typing import Any

import gymnasium as gym
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env


def make_node(arguments: dict[str, Any]) -> gym.Env:
    """The plain environment; the import registers it in Ray's workers as well."""
    import slicepilot.env  # noqa: F401

    return gym.make("slicepilot/SliceControl-v0", **arguments)


def make_slices(arguments: dict[str, Any]) -> Any:
    """Every slice an agent."""
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv

    from slicepilot.env.environments.parallel_env import SliceParallelEnv

    return ParallelPettingZooEnv(SliceParallelEnv(**arguments))


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--scenario", default="multi-promise")
parser.add_argument("--agents", action="store_true", help="a slice is an agent")
parser.add_argument("--iterations", type=int, default=20)
parser.add_argument("--batch", type=int, default=4000, help="steps of an iteration")
parser.add_argument("--runners", type=int, default=0, help="processes that sample, 0 for this process")
parser.add_argument("--out", help="folder for the checkpoint")
options = parser.parse_args()

register_env("slicepilot-node", make_node)
register_env("slicepilot-slices", make_slices)
arguments: dict[str, Any] = {"scenario": options.scenario}
if not options.agents:
    arguments["flat_actions"] = True
ray.init(num_cpus=max(1, options.runners + 1), include_dashboard=False)
config = (
    PPOConfig()
    .environment("slicepilot-slices" if options.agents else "slicepilot-node", env_config=arguments)
    .env_runners(num_env_runners=options.runners)
    .training(gamma=0.9, train_batch_size_per_learner=options.batch, minibatch_size=min(256, options.batch))
)
if options.agents:
    config = config.multi_agent(policies={"slice"}, policy_mapping_fn=lambda agent, *_, **__: "slice")
algorithm = config.build_algo()
for n in range(options.iterations):
    result = algorithm.train()
    figures = result["env_runners"]
    steps = figures["num_env_steps_sampled_lifetime"]
    print(f"iteration {n + 1}: {steps:.0f} steps, mean return {figures.get('episode_return_mean', float('nan')):.2f}")
if options.out:
    algorithm.save_to_path(str(Path(options.out).resolve()))
algorithm.stop()
ray.shutdown()
