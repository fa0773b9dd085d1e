"""Both implementations from the same weights on the same batches: do they walk the same way?

    python benchmarks/offline/same_steps.py

Returns say little about a loss: they differ by tens between seeds. Here nothing differs but the code. TD3+BC (without
noise on the target's action) and IQL make so many updates side by side; then the largest difference between the two in
any weight stands beside the largest way that a weight has come. CQL draws actions, so its gradients are compared
instead, on many draws: the cosine between the two and the ratio of their lengths. d3rlpy is imported from the
environment that ``environment.sh`` makes, for this one process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slicepilot.training.offline.cql import Cql, CqlConfig
from slicepilot.training.offline.iql import Iql, IqlConfig
from slicepilot.training.offline.learner import Batch, Learner
from slicepilot.training.offline.networks import FlatNetworks
from slicepilot.training.offline.td3_bc import Td3Bc, Td3BcConfig

PACKAGES = Path(__file__).resolve().parents[2] / "build/offline-reference/lib/python3.11/site-packages"
OBSERVATIONS, ACTIONS, HIDDEN, GAMMA = 20, 5, (64, 64), 0.95
BATCH, MANY = 128, 8192
STILL = 1e-12  # a learning rate that moves nothing


def main() -> None:
    """Walk and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sys.path.append(str(PACKAGES))  # after our own packages, which go first
    td3_bc, iql = Td3BcConfig(policy_noise=0.0), IqlConfig()
    for name, config, learner in (
        ("td3-bc", td3_bc, Td3Bc(td3_bc, networks())),
        ("iql", iql, Iql(iql, networks())),
    ):
        for network, apart, moved in walked(name, vars(config), learner, options.updates):
            print(f"{name:7s}{network:16s}{options.updates} updates: {apart:.1e} apart, {moved:.1e} from the start")
    for network, cosine, ratio in gradients():
        print(f"{'cql':7s}{network:16s}gradients: cosine {cosine:.4f}, length {ratio:.3f} of d3rlpy's")


def networks() -> FlatNetworks:
    """Perceptrons on observations that are standardised already."""
    standard = torch.tensor([[-1.0], [1.0]]).expand(2, OBSERVATIONS) / 2**0.5
    return FlatNetworks(standard, ACTIONS, HIDDEN, torch.device("cpu"))


def walked(name: str, settings: Mapping[str, Any], learner: Learner, updates: int) -> list[tuple[str, float, float]]:
    """Network, largest difference between both, largest way of a weight."""
    other = reference(name, settings, learner)
    pairs = matched(other.modules, learner)
    began = {key: weights(own).clone() for key, (_, own) in pairs.items()}
    for step in range(1, updates + 1):
        batch = drawn(BATCH)
        other.inner_update(theirs(batch), step)
        learner.update(batch)
    return [
        (key, distance(weights(their), weights(own)), distance(weights(own), began[key]))
        for key, (their, own) in pairs.items()
    ]


def gradients() -> list[tuple[str, float, float]]:
    """Network, cosine between both gradients, length of ours over that of d3rlpy's."""
    config = CqlConfig(actor_learning_rate=STILL, critic_learning_rate=STILL, temperature_learning_rate=STILL)
    learner = Cql(config, networks())
    other, batch = reference("cql", vars(config), learner), drawn(MANY)
    learner.update(batch)
    modules = other.modules
    rows = []
    for name, compute, optimizer, parts, own_parts in (
        ("critics", other.compute_critic_grad, modules.critic_optim, modules.q_funcs, learner.critics),
        ("actor", other.compute_actor_grad, modules.actor_optim, modules.policy, learner.actor),
    ):
        optimizer.zero_grad()
        compute(theirs(batch))
        their, own = gradient(parts), gradient(own_parts)
        rows.append((name, float(own @ their / own.norm() / their.norm()), float(own.norm() / their.norm())))
    return rows


def reference(name: str, settings: Mapping[str, Any], learner: Learner) -> Any:
    """d3rlpy's side of an algorithm, with the weights of ours."""
    job = {"algorithm": name, "settings": settings, "batch": BATCH, "gamma": GAMMA, "hidden": HIDDEN}
    config = import_module("reference").algorithm(job)  # not before d3rlpy can be found
    config.observation_scaler = None
    other = config.create(device="cpu:0")
    other.create_impl((OBSERVATIONS,), ACTIONS)
    for their, own in matched(other.impl.modules, learner).values():
        for to, source in zip(linear(their), linear(own), strict=True):
            to.load_state_dict(source.state_dict())
    return other.impl


def matched(modules: Any, learner: Any) -> dict[str, tuple[nn.Module, nn.Module]]:
    """Networks of d3rlpy's and ours that are the same."""
    found = {"actor": (modules.policy, learner.actor)}
    for i, critic in enumerate(learner.critics.each):
        found[f"critic {i}"] = modules.q_funcs[i], critic
        found[f"target critic {i}"] = modules.targ_q_funcs[i], learner.target_critics.each[i]
    if hasattr(modules, "targ_policy"):
        found["target actor"] = modules.targ_policy, learner.target_actor
    if hasattr(modules, "value_func"):
        found["value"] = modules.value_func, learner.value
    return found


def linear(network: nn.Module) -> list[nn.Linear]:
    """Its layers in order."""
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def weights(network: nn.Module) -> Tensor:
    """All of them in a row."""
    return torch.cat([p.detach().flatten() for layer in linear(network) for p in layer.parameters()])


def gradient(network: nn.Module) -> Tensor:
    """Of all weights, in a row; not defined before a loss was derived."""
    found = [p.grad for layer in linear(network) for p in layer.parameters()]
    return torch.cat([one.flatten() for one in found if one is not None])


def distance(one: Tensor, other: Tensor) -> float:
    """Largest difference."""
    return float((one - other).abs().max())


def drawn(size: int) -> Batch:
    """Random steps whose reward depends on state and action."""
    states, following = torch.randn(size, OBSERVATIONS), torch.randn(size, OBSERVATIONS)
    actions = 2.0 * torch.rand(size, ACTIONS) - 1.0
    rewards = actions[:, 0] * states[:, 0] + 0.1 * torch.randn(size)
    return Batch(states, actions, rewards, following, torch.full((size,), GAMMA), torch.ones(size))


def theirs(batch: Batch) -> Any:
    """The same steps for d3rlpy."""
    rewards = batch.rewards[:, None]
    return import_module("d3rlpy.torch_utility").TorchMiniBatch(
        observations=batch.inputs,
        actions=batch.actions,
        rewards=rewards,
        next_observations=batch.next_inputs,
        next_actions=batch.actions,
        returns_to_go=rewards,
        terminals=torch.zeros_like(rewards),
        intervals=torch.ones_like(rewards),
        device="cpu",
    )


if __name__ == "__main__":
    main()
