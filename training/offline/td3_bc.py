"""TD3+BC: a deterministic policy that climbs its critic while it stays near the logged actions.

S. Fujimoto, S. S. Gu, "A Minimalist Approach to Offline Reinforcement Learning", NeurIPS 2021, arXiv:2106.06860, on top
of TD3 (Fujimoto et al. 2018, arXiv:1802.09477). With target networks Q', pi':

    y      = r + gamma min_i Q'_i(s', clip(pi'(s') + eps)),   eps ~ clip(N(0, policy_noise^2), -noise_clip, noise_clip)
    critic : min_Q   sum_i E [ (Q_i(s, a) - y)^2 ]
    actor  : max_pi  E [ lambda Q_1(s, pi(s)) - (pi(s) - a)^2 ],   lambda = alpha / mean |Q_1(s, pi(s))|

The actor moves in every ``actor_interval``-th update, and so do the targets.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .learner import STRICT, Batch, Count, Learner, NonNegative, Positive, Rate, adam, descend, follow, target_of
from .networks import Networks


@dataclass(frozen=True)
class Td3BcConfig:
    """Settings of TD3+BC; defaults as published.

    Attributes:
        alpha: weight of the critic against the logged actions, after both are brought to the same scale.
        policy_noise, noise_clip: deviation and bound of the noise on the target's action, on the action's scale.
        actor_interval: updates of the critics per update of the actor.
        target_rate: how fast the targets follow.
        actor_learning_rate, critic_learning_rate: of Adam.
    """

    __pydantic_config__ = STRICT
    alpha: NonNegative = 2.5
    policy_noise: NonNegative = 0.2
    noise_clip: NonNegative = 0.5
    actor_interval: Count = 2
    target_rate: Rate = 0.005
    actor_learning_rate: Positive = 3e-4
    critic_learning_rate: Positive = 3e-4


class Td3Bc(Learner):
    """The learner."""

    def __init__(self, config: Td3BcConfig, networks: Networks) -> None:
        super().__init__()
        self.config = config
        self.actor, self.critics = networks.actor("none"), networks.critics(2)
        self.target_actor, self.target_critics = target_of(self.actor), target_of(self.critics)
        self.optimizers = {
            "actor": adam(config.actor_learning_rate, self.actor),
            "critics": adam(config.critic_learning_rate, self.critics),
        }

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One step of the critics, and of the actor when it is its turn."""
        figures = self._learn_values(batch)
        self.updates += 1
        if self.updates % self.config.actor_interval == 0:
            figures |= self._learn_actions(batch)
            follow(self.target_critics, self.critics, self.config.target_rate)
            follow(self.target_actor, self.actor, self.config.target_rate)
        return figures

    def _learn_values(self, batch: Batch) -> dict[str, Tensor]:
        config = self.config
        with torch.no_grad():
            chosen = self.target_actor(batch.next_inputs)
            action = chosen.action
            noise = (config.policy_noise * torch.randn_like(action)).clamp(-config.noise_clip, config.noise_clip)
            next_action = chosen.or_held((action + noise).clamp(-1.0, 1.0))
            next_value = self.target_critics(batch.next_inputs, next_action).amin(0)
            target = batch.rewards + batch.discounts * next_value
        values = self.critics(batch.inputs, batch.actions)
        loss = (values - target).square().mean(1).sum()
        descend(self.optimizers["critics"], loss)
        return {"critic_loss": loss.detach(), "value": values.detach().mean()}

    def _learn_actions(self, batch: Batch) -> dict[str, Tensor]:
        choice = self.actor(batch.inputs)
        values = self.critics(batch.inputs, choice.action)[0]
        scale = self.config.alpha / values.detach().abs().mean().clamp(min=1e-6)
        error = batch.over_choices(choice.squared_error(batch.actions))
        loss = error - scale * values.mean()
        descend(self.optimizers["actor"], loss)
        return {"actor_loss": loss.detach(), "action_error": error.detach()}
