"""The project's policy for Stable-Baselines3: PPO's and SAC's actor and critic from `slicepilot.training.networks`.

PPO's policy corrects a rule, with actions (B, S, 5); SAC's decides on knobs, with actions (B, S, 3). Observations are
(B, S * D) as the environments give them, or the table (B, S, D).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution
from stable_baselines3.common.policies import ActorCriticPolicy, BaseModel, BasePolicy, ContinuousCritic
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.sac.policies import LOG_STD_MAX, LOG_STD_MIN, Actor, SACPolicy
from torch import Tensor

from slicepilot.agents.learned.guide import NUM_GUIDED
from slicepilot.env.knobs import NUM_KNOBS
from slicepilot.training.networks import guided
from slicepilot.training.networks.guided import GuidedPolicy
from slicepilot.training.networks.node_shares import present, with_shares
from slicepilot.training.networks.slice_network import (
    SQUASHED_GAIN,
    ActionHead,
    DeterministicPolicy,
    NetworkConfig,
    SliceEncoder,
    SliceHead,
    as_table,
)
from slicepilot.training.networks.values import PooledCritics, pooled_values

# Share of the budget after which exploration has shrunk to its final deviation.
SHRUNK_AT = 0.6


class PpoPolicy(ActorCriticPolicy):
    """Actor and critic for Stable-Baselines3's PPO; actions are corrections of a rule (B, S, 5).

    A Gaussian around the mean correction whose standard deviation depends on the column and the progress of training
    alone (`NetworkConfig`): learned deviations shrank too slowly for limits that must be met within a few per cent. The
    environment clips. Absent slices are not corrected and count neither in the likelihood nor in the entropy.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        network: NetworkConfig | None = None,
        **kwargs: Any,
    ) -> None:
        self.network = network or NetworkConfig()
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        self.encoder, self.actor_head, self.value_encoder, self.value_head = guided.network(self.network)
        self.register_buffer("log_std", torch.tensor(self.deviations[0]).log())
        # Stable-Baselines3 expects it to be made last.
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    @property
    def deviations(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Of the noise in each column of an action, at first and at last."""
        net = self.network
        return (*net.initial_order_std, *net.initial_std), (*net.final_order_std, *net.final_std)

    def set_progress(self, fraction: float) -> None:
        """Set the exploration noise for a share (0..1) of the training budget that is used up."""
        start, end = (torch.tensor(deviations).log() for deviations in self.deviations)
        self.log_std.copy_(torch.lerp(start, end, min(fraction / SHRUNK_AT, 1.0)))

    def _moments(self, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean actions (B, S, 5), values (B, 1), presence mask (B, S, 1)."""
        table = as_table(observation, NUM_GUIDED)
        mask = present(table)
        mean = self.actor_head(*self.encoder(table, mask)) * mask
        return mean, self.value_head(self.value_encoder(table, mask)[1]), mask

    def _log_prob(self, noise: Tensor, mask: Tensor) -> Tensor:
        """Log-likelihood (B,) of standard-normal ``noise`` (B, S, 5), over present slices."""
        terms = -0.5 * noise.square() - self.log_std - 0.5 * math.log(2.0 * math.pi)
        return (terms * mask).sum((1, 2))

    def forward(self, obs: Tensor, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Actions (B, S, 5), values (B, 1), log-likelihoods (B,)."""
        mean, value, mask = self._moments(obs)
        noise = torch.zeros_like(mean) if deterministic else torch.randn_like(mean)
        return mean + noise * mask * self.log_std.exp(), value, self._log_prob(noise, mask)

    def evaluate_actions(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Values (B, 1), log-likelihoods (B,) and entropies (B,) for actions (B, S * 5) taken earlier."""
        mean, value, mask = self._moments(obs)
        noise = (actions.reshape(mean.shape) - mean) / self.log_std.exp()
        entropy = (self.log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum() * mask.sum((1, 2))
        return value, self._log_prob(noise, mask), entropy

    def predict_values(self, obs: Tensor) -> Tensor:  # type: ignore[override]
        """Values (B, 1)."""
        table = as_table(obs, NUM_GUIDED)
        return self.value_head(self.value_encoder(table, present(table))[1])

    def _predict(self, observation: Tensor, deterministic: bool = False) -> Tensor:  # type: ignore[override]
        return self(observation, deterministic)[0]

    def deterministic(self) -> GuidedPolicy:
        """The policy without noise, sharing this one's weights."""
        return GuidedPolicy(self.encoder, self.actor_head)


class _SacActor(Actor):
    """SAC's tanh-squashed Gaussian with a standard deviation per slice and state (Haarnoja et al. 2018)."""

    def __init__(self, network: NetworkConfig, **kwargs: Any) -> None:
        BasePolicy.__init__(
            self,
            kwargs["observation_space"],
            kwargs["action_space"],
            features_extractor=kwargs["features_extractor"],
            normalize_images=False,
            squash_output=True,
        )
        self.use_sde = False
        width = network.width
        self.encoder = SliceEncoder(network)
        self.mean_head = ActionHead(network, SQUASHED_GAIN)
        self.std_head = SliceHead(width, NUM_KNOBS, 0.01, tuple(math.log(std) for std in network.initial_std))
        self.action_dist = SquashedDiagGaussianDistribution(math.prod(self.action_space.shape))  # type: ignore[assignment]

    def get_action_dist_params(self, obs: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:  # type: ignore[override]
        """Mean and log standard deviation before the squashing, (B, S * 3) each."""
        rows = with_shares(as_table(obs))
        hidden, context = self.encoder(rows, present(rows))
        mean, log_std = self.mean_head.unsquashed(rows, hidden, context), self.std_head(hidden, context)
        return mean.flatten(1), log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).flatten(1), {}


class _SacCritic(ContinuousCritic):
    """Q-functions that do not depend on the order of the slices: rows with their actions, pooled."""

    def __init__(self, network: NetworkConfig, n_critics: int, **kwargs: Any) -> None:
        BaseModel.__init__(
            self,
            kwargs["observation_space"],
            kwargs["action_space"],
            features_extractor=kwargs["features_extractor"],
            normalize_images=False,
        )
        self.share_features_extractor = False
        self.n_critics = n_critics
        critics = PooledCritics(network, n_critics)
        self.encoders, self.heads = critics.encoders, critics.heads

    def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
        """Values (B, 1) of every critic."""
        table = as_table(obs)
        actions = actions.reshape(*table.shape[:2], NUM_KNOBS)
        return pooled_values(self.encoders, self.heads, with_shares(table), actions).unsqueeze(-1).unbind()

    def q1_forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values (B, 1) of the first critic."""
        return self(obs, actions)[0]


class SacPolicy(SACPolicy):
    """Actor and critics for Stable-Baselines3's SAC; actions are knobs (B, S, 3)."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Box,
        lr_schedule: Schedule,
        network: NetworkConfig | None = None,
        **kwargs: Any,
    ) -> None:
        self.network = network or NetworkConfig()
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)

    def _parts(self, features_extractor: BaseFeaturesExtractor | None) -> dict[str, Any]:
        return {
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "features_extractor": features_extractor or FlattenExtractor(self.observation_space),
        }

    def make_actor(self, features_extractor: BaseFeaturesExtractor | None = None) -> Actor:
        """The actor."""
        return _SacActor(self.network, **self._parts(features_extractor)).to(self.device)

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> ContinuousCritic:
        """A set of two critics."""
        return _SacCritic(self.network, 2, **self._parts(features_extractor)).to(self.device)

    def deterministic(self) -> DeterministicPolicy:
        """The policy without noise, sharing this one's weights."""
        assert isinstance(self.actor, _SacActor)
        return DeterministicPolicy(self.actor.encoder, self.actor.mean_head)
