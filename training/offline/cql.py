"""Conservative Q-learning: values of actions that were not logged are kept low.

A. Kumar, A. Zhou, G. Tucker, S. Levine, "Conservative Q-Learning for Offline Reinforcement Learning", NeurIPS 2020,
arXiv:2006.04779; the variant CQL(H) with a fixed weight on soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905).
With target critics Q' = min_i Q'_i:

    critic : min_Q   sum_i  w E_s [ log integral exp Q_i(s, a) da - E_(a in D) Q_i(s, a) ]
                            + E [ (r + gamma Q'(s', a') - Q_i(s, a))^2 ] / 2,        a' ~ pi(. | s')
    actor  : max_pi  E [ min_i Q_i(s, a) - temperature log pi(a | s) ],               a ~ pi(. | s)

The integral is estimated by importance sampling: ``action_samples`` actions each from the uniform distribution, from
pi(. | s) and from pi(. | s'), every value less the logarithm of its density. The temperature holds the policy's entropy
at minus one per entry of the action. As in the authors' code, the backup is without an entropy term; unlike there, the
squared error is halved, as in the paper's equation (4), so that a weight of the code is half as much here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from .actors import Choice
from .learner import STRICT, Batch, Count, Learner, NonNegative, Positive, Rate, adam, descend, follow, target_of
from .networks import Networks


@dataclass(frozen=True)
class CqlConfig:
    """Settings of CQL; defaults as published for locomotion, with a fixed weight.

    Attributes:
        conservative_weight: w, of the first term of the critics' loss.
        action_samples: actions from each of the three distributions.
        initial_temperature: of the entropy term; it is learned.
        target_rate: how fast the target critics follow.
        actor_learning_rate, critic_learning_rate, temperature_learning_rate: of Adam.
    """

    __pydantic_config__ = STRICT
    conservative_weight: NonNegative = 5.0
    action_samples: Count = 10
    initial_temperature: Positive = 1.0
    target_rate: Rate = 0.005
    actor_learning_rate: Positive = 1e-4
    critic_learning_rate: Positive = 3e-4
    temperature_learning_rate: Positive = 1e-4


class Cql(Learner):
    """The learner."""

    def __init__(self, config: CqlConfig, networks: Networks) -> None:
        super().__init__()
        self.config = config
        self.actor, self.critics = networks.actor("by_state"), networks.critics(2)
        self.target_critics = target_of(self.critics)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(config.initial_temperature), device=networks.device))
        self.optimizers = {
            "actor": adam(config.actor_learning_rate, self.actor),
            "critics": adam(config.critic_learning_rate, self.critics),
            "temperature": torch.optim.Adam([self.log_temperature], lr=config.temperature_learning_rate),
        }

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One step of temperature, actor and critics."""
        choice = self.actor(batch.inputs)
        figures = self._learn_actions(batch, choice) | self._learn_values(batch, choice)
        follow(self.target_critics, self.critics, self.config.target_rate)
        self.updates += 1
        return figures

    def _learn_actions(self, batch: Batch, choice: Choice) -> dict[str, Tensor]:
        actions, log_likelihood = choice.sample()
        log_likelihood = log_likelihood[0]
        surplus = (log_likelihood.detach() - choice.entries()).mean()  # the entropy aimed at is -entries
        descend(self.optimizers["temperature"], -self.log_temperature.exp() * surplus)
        temperature = self.log_temperature.detach().exp()
        loss = (temperature * log_likelihood - self.critics(batch.inputs, actions).amin(0)).mean()
        descend(self.optimizers["actor"], loss)
        return {"actor_loss": loss.detach(), "temperature": temperature, "entropy": -log_likelihood.detach().mean()}

    def _learn_values(self, batch: Batch, choice: Choice) -> dict[str, Tensor]:
        with torch.no_grad():
            following = self.actor(batch.next_inputs)
            next_action, _ = following.sample()
            next_value = self.target_critics(batch.next_inputs, next_action).amin(0)
            target = batch.rewards + batch.discounts * next_value
            others, log_density = self._others(choice, following)
        logged, elsewhere = self._values(batch, others)
        bellman_error = 0.5 * (logged - target).square().mean(1).sum()
        gap = batch.over_choices(torch.logsumexp(elsewhere - log_density, 1) - logged).sum()
        descend(self.optimizers["critics"], bellman_error + self.config.conservative_weight * gap)
        return {"critic_loss": bellman_error.detach(), "gap": gap.detach(), "value": logged.detach().mean()}

    def _others(self, choice: Choice, following: Choice) -> tuple[Tensor, Tensor]:
        """Actions (3 * samples * B, ...) in the batch's states and their log-densities (3 * samples, B)."""
        count = self.config.action_samples
        uniform = 2.0 * torch.rand((count, *choice.raw.shape), device=choice.raw.device) - 1.0
        uniform_density = (-math.log(2.0) * choice.entries()).expand(count, -1)
        actions, densities = [choice.or_held(uniform.flatten(0, 1))], [uniform_density]
        # Which slices there are is the state's to say, not that of the one that follows: only their law is of s'.
        for source in (choice, replace(following, mask=choice.mask, held=choice.held)):
            drawn, density = source.sample(count)
            actions.append(drawn)
            densities.append(density)
        return torch.cat(actions), torch.cat(densities)

    def _values(self, batch: Batch, others: Tensor) -> tuple[Tensor, Tensor]:
        """Of the logged actions (critics, B) and of the others (critics, samples, B), in one pass."""
        size = len(batch.actions)
        values = self.critics(batch.inputs, torch.cat([batch.actions, others]))
        return values[:, :size], values[:, size:].unflatten(1, (-1, size))
