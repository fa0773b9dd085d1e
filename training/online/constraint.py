"""A constraint on broken promises: what they cost follows how many there are, against the rule that is to be beaten.

The reward counts a promise by degree, so that a policy may earn more while it breaks more promises a little. What users
count is whether they are kept. So broken promises are held below a share of those that the greedy rule breaks on the
same mixture: a multiplier grows while there are more and falls while there are fewer (the Lagrangian of a constrained
Markov decision process; Altman 1999; Tessler et al. 2019, "Reward Constrained Policy Optimization", arXiv:1805.11074).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...env.backend import Context
from ...env.promises import promise_score
from ...env.slices import FloatArray
from ...env.telemetry import Telemetry


def broken_share(telemetry: Telemetry, context: Context) -> FloatArray:
    """Share of the weight whose promise is broken in this period, (L,)."""
    weight = context.promises.weight * telemetry.valid
    broken = weight * (promise_score(telemetry, context) < 1.0)
    return np.asarray(broken.sum(axis=0) / np.maximum(weight.sum(axis=0), 1e-6), np.float32)


@dataclass
class BrokenPromises:
    """What broken promises cost, on the scale of the reward.

    Attributes:
        over_rule: what the mean `broken_share` may be, over the rule's.
        rule: the rule's mean.
        multiplier: cost of a period in which everything is broken; least, most: it stays between them.
        rate: how fast it follows, per vector step.
        horizon_steps: over which the mean is taken.
    """

    over_rule: float
    rule: float
    multiplier: float = 5.0
    least: float = 0.5
    most: float = 100.0
    rate: float = 1e-3
    horizon_steps: float = 500.0
    average: float | None = None

    def __call__(self, broken: FloatArray) -> FloatArray:
        """What is taken off the reward (L,)."""
        now = float(broken.mean())
        self.average = now if self.average is None else self.average + (now - self.average) / self.horizon_steps
        excess = self.average / max(self.over_rule * self.rule, 1e-6) - 1.0
        grown = self.multiplier * math.exp(self.rate * min(max(excess, -1.0), 1.0))
        self.multiplier = min(max(grown, self.least), self.most)
        return np.float32(self.multiplier) * broken

    @property
    def over(self) -> float:
        """The mean now, over the rule's."""
        return (self.rule if self.average is None else self.average) / max(self.rule, 1e-6)

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"multiplier": self.multiplier, "average": self.rule if self.average is None else self.average}

    def restore(self, state: dict[str, float]) -> None:
        """Continue from `state`."""
        self.multiplier, self.average = state["multiplier"], state["average"]
