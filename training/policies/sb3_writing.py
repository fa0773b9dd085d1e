"""A bundle's policy as a file that Stable-Baselines3's ``PPO.load`` or ``SAC.load`` takes."""

from __future__ import annotations

import io
from typing import Any

from stable_baselines3 import PPO, SAC

from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.agents.learned.guide import NUM_GUIDED, Guide
from slicepilot.configs import ConfigError, validate
from slicepilot.env.environments.spaces import Actions, observation_space
from slicepilot.training.networks.importing import load_weights
from slicepilot.training.networks.slice_network import NetworkConfig
from slicepilot.training.online.policy import PpoPolicy, SacPolicy


def sb3_file(bundle: PolicyBundle, num_slices: int) -> tuple[str, bytes]:
    """The algorithm's name and the file's contents, for an environment of so many slices.

    Raises:
        ConfigError: the bundle's network is none of PPO's or SAC's of this project.
    """
    if bundle.transfers is not True:
        raise ConfigError(
            f"{bundle}: made of {bundle.training.source or 'logged settings'}; expected a bundle of `slicepilot train`"
        )
    # The argument that determines the shapes of a network's weights.
    sizes = {key: value for key, value in bundle.training.config.get("network", {}).items() if key == "width"}
    network = validate(NetworkConfig, sizes, f"{bundle}: training.config.network")
    guided, count = bundle.coding == "guided", num_slices
    settings: dict[str, Any] = {"policy_kwargs": {"network": network}, "device": "cpu", "_init_setup_model": False}
    algorithm: PPO | SAC
    if guided:
        algorithm = PPO(PpoPolicy, None, **settings)  # type: ignore[arg-type]
        seen, done = observation_space(count, NUM_GUIDED), Actions(count, Guide.actions).space
    else:
        algorithm = SAC(SacPolicy, None, buffer_size=1, **settings)  # type: ignore[arg-type]
        seen, done = observation_space(count), Actions(count).space
    algorithm.observation_space, algorithm.action_space, algorithm.n_envs = seen, done, 1
    algorithm.seed, algorithm.num_timesteps = bundle.training.seed, bundle.training.env_steps
    algorithm._setup_model()
    assert isinstance(algorithm.policy, (PpoPolicy, SacPolicy))
    load_weights(algorithm.policy.deterministic(), bundle)
    buffer = io.BytesIO()
    algorithm.save(buffer)
    return type(algorithm).__name__, buffer.getvalue()
