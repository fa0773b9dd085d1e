"""Implicit Q-learning: values of the better logged actions, without evaluating actions that were not logged.

I. Kostrikov, A. Nair, S. Levine, "Offline Reinforcement Learning with Implicit Q-Learning", 2021, arXiv:2110.06169.
With target critics Q' = min_i Q'_i and the expectile loss L_tau(u) = |tau - 1(u < 0)| u^2:

    value  : min_V   E [ L_tau(Q'(s, a) - V(s)) ]
    critic : min_Q   sum_i E [ (r + gamma V(s') - Q_i(s, a))^2 ]
    actor  : max_pi  E [ min(exp(beta (Q'(s, a) - V(s))), max_weight) log pi(a | s) ]

A Gaussian policy with one deviation per knob. The paper lets the actor's learning rate fall as a cosine; here the
policy that is saved is an average over the last updates instead (`slicepilot.training.networks.averaging`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .learner import STRICT, Batch, Learner, NonNegative, Positive, Rate, Share, adam, descend, follow, target_of
from .networks import Networks


@dataclass(frozen=True)
class IqlConfig:
    """Settings of IQL; defaults as published for locomotion.

    Attributes:
        expectile: tau, 0.5 values the mean of the logged actions, towards 1 the best of them.
        inverse_temperature: beta, 0 clones the behaviour, large takes the best actions alone.
        max_weight: of a step in the actor's loss.
        target_rate: how fast the target critics follow.
        actor_learning_rate, critic_learning_rate, value_learning_rate: of Adam.
    """

    __pydantic_config__ = STRICT
    expectile: Share = 0.7
    inverse_temperature: NonNegative = 3.0
    max_weight: Positive = 100.0
    target_rate: Rate = 0.005
    actor_learning_rate: Positive = 3e-4
    critic_learning_rate: Positive = 3e-4
    value_learning_rate: Positive = 3e-4


class Iql(Learner):
    """The learner."""

    def __init__(self, config: IqlConfig, networks: Networks) -> None:
        super().__init__()
        self.config = config
        self.actor, self.critics, self.value = networks.actor("learned"), networks.critics(2), networks.value()
        self.target_critics = target_of(self.critics)
        self.optimizers = {
            "actor": adam(config.actor_learning_rate, self.actor),
            "critics": adam(config.critic_learning_rate, self.critics),
            "value": adam(config.value_learning_rate, self.value),
        }

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One step of value, actor and critics."""
        config = self.config
        with torch.no_grad():
            next_value = self.value(batch.next_inputs)
            logged = self.target_critics(batch.inputs, batch.actions).amin(0)
        value = self.value(batch.inputs)
        advantage = logged - value
        value_loss = expectile_loss(advantage, config.expectile).mean()
        descend(self.optimizers["value"], value_loss)

        weight = (config.inverse_temperature * advantage.detach()).exp().clamp(max=config.max_weight)
        choice = self.actor(batch.inputs)
        actor_loss = -batch.over_choices(weight * choice.log_likelihood(batch.actions))
        descend(self.optimizers["actor"], actor_loss)

        values = self.critics(batch.inputs, batch.actions)
        critic_loss = (values - (batch.rewards + batch.discounts * next_value)).square().mean(1).sum()
        descend(self.optimizers["critics"], critic_loss)
        follow(self.target_critics, self.critics, config.target_rate)
        self.updates += 1
        return {
            "critic_loss": critic_loss.detach(),
            "value_loss": value_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "value": value.detach().mean(),
            "weight": batch.over_choices(weight),
            "action_error": batch.over_choices(choice.squared_error(batch.actions)).detach(),
        }


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """|tau - 1(u < 0)| u^2, elementwise: minimal at the tau-expectile (Newey and Powell 1987)."""
    return torch.where(difference < 0, 1.0 - expectile, expectile) * difference.square()
