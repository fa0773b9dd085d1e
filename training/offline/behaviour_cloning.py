"""Behaviour cloning: imitate the logged actions.

Maximum likelihood of the logged actions (Pomerleau 1991, "Efficient Training of Artificial Neural Networks for
Autonomous Navigation", Neural Computation 3(1):88-97) under a Gaussian with one deviation per knob:

    max_pi  E_(s, a) in D [ log pi(a | s) ],   pi(. | s) = N(mu(s), diag(sigma^2))

It learns what the average of the logged policies does, good or bad: the control of every other algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .learner import STRICT, Batch, Learner, Positive, adam, descend
from .networks import Networks


@dataclass(frozen=True)
class BehaviourCloningConfig:
    """Settings of behaviour cloning.

    Attributes:
        learning_rate: of Adam.
    """

    __pydantic_config__ = STRICT
    learning_rate: Positive = 3e-4


class BehaviourCloning(Learner):
    """The learner."""

    def __init__(self, config: BehaviourCloningConfig, networks: Networks) -> None:
        super().__init__()
        self.config = config
        self.actor = networks.actor("learned")
        self.optimizers = {"actor": adam(config.learning_rate, self.actor)}

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One step on the likelihood."""
        choice = self.actor(batch.inputs)
        loss = -batch.over_choices(choice.log_likelihood(batch.actions))
        descend(self.optimizers["actor"], loss)
        self.updates += 1
        error = batch.over_choices(choice.squared_error(batch.actions))
        return {"actor_loss": loss.detach(), "action_error": error.detach()}
