"""A constraint on broken promises: what they cost follows how many there are, against the rule that is to be beaten.

The reward counts a promise by degree, so that a policy may earn more while it breaks more promises a little. What users
count is whether they are kept. So broken promises are held below a share of those that the rule breaks on the same
mixture: a multiplier grows while there are more and falls while there are fewer (the Lagrangian of a constrained Markov
decision process; Altman 1999; Tessler et al. 2019, "Reward Constrained Policy Optimization", arXiv:1805.11074).

What is constrained is the geometric mean over deployments: twice as much where little breaks is as bad as twice as much
where nobody can keep half of it, and a plain mean would hear of the latter alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.promises import PromiseMeter
from slicepilot.env.telemetry import Telemetry

# Of the time; less than this is as good as nothing.
FLOOR = np.float32(0.01)
# A deployment counts as an average one at first, as if it had been seen for so many periods.
PRIOR_PERIODS = 8.0


class BrokenShare:
    """Share of the weight whose promise is broken in each period of a run, as `PromiseMeter` judges."""

    def __init__(self, context: Context) -> None:
        self._meter, self._weight = PromiseMeter(context), context.promises.weight

    def __call__(self, telemetry: Telemetry) -> FloatArray:
        """Of the period, (L,); to be called once a period."""
        weight = self._weight * telemetry.valid
        broken = (weight * self._meter.broken(telemetry)).sum(axis=0)
        return np.asarray(broken / np.maximum(weight.sum(axis=0), 1e-6), np.float32)


@dataclass
class BrokenPromises:
    """What broken promises cost, on the scale of the reward.

    Lanes are ordered (group, copy, input) as `slicepilot.training.online.vec_env.Sb3VecEnv` has them.

    Attributes:
        over_rule: what the geometric mean of broken time may be, over the rule's.
        rule: the rule's, as a mean logarithm (`log_share`).
        groups, copies: of lanes; copies are the same deployment.
        multiplier: cost of a break that makes its deployment's broken time e times as much; least, most: it stays
            between them.
        rate: how fast it follows, per vector step.
        horizon_lanes: runs over which the mean is taken.
    """

    over_rule: float
    rule: float
    groups: int = 1
    copies: int = 1
    multiplier: float = 0.5
    least: float = 0.05
    most: float = 3.0
    rate: float = 2e-3
    horizon_lanes: float = 20_000.0
    average: float | None = None
    _sum: FloatArray = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)
    _periods: FloatArray = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)

    def __call__(self, broken: FloatArray, ended: np.ndarray) -> FloatArray:
        """What is taken off the reward (L,), for the share that is broken (L,) and where runs end (L,)."""
        if self._sum.shape != broken.shape:
            self._sum, self._periods = np.zeros_like(broken), np.zeros_like(broken)
        self._sum += broken
        self._periods += 1
        usual = np.float32(math.exp(self.rule if self.average is None else self.average))
        share = (self._of_copies(self._sum) + np.float32(PRIOR_PERIODS) * usual) / (self._periods + PRIOR_PERIODS)
        cost = np.float32(self.multiplier) * broken / (share + FLOOR)
        if ended.any():
            self._end(ended)
        excess = self.mean - self.rule - math.log(self.over_rule)
        grown = self.multiplier * math.exp(self.rate * min(max(4.0 * excess, -1.0), 1.0))
        self.multiplier = min(max(grown, self.least), self.most)
        return np.asarray(cost, np.float32)

    def _of_copies(self, values: FloatArray) -> FloatArray:
        table = values.reshape(self.groups, self.copies, -1)
        return np.broadcast_to(table.mean(axis=1, keepdims=True), table.shape).reshape(values.shape)

    def _end(self, ended: np.ndarray) -> None:
        logs = log_share(self._sum[ended] / self._periods[ended])
        part = min(len(logs) / self.horizon_lanes, 1.0)
        self.average = self.mean + part * (float(logs.mean()) - self.mean)
        self._sum[ended], self._periods[ended] = 0.0, 0.0

    @property
    def mean(self) -> float:
        """The mean logarithm now; the rule's before anything has ended."""
        return self.rule if self.average is None else self.average

    @property
    def over(self) -> float:
        """The geometric mean now, over the rule's."""
        return math.exp(self.mean - self.rule)

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"multiplier": self.multiplier, "average": self.mean}

    def restore(self, state: dict[str, float]) -> None:
        """Continue from `state`."""
        self.multiplier, self.average = state["multiplier"], state["average"]


def log_share(share: FloatArray) -> FloatArray:
    """Logarithm of a share of the time, with `FLOOR`."""
    return np.asarray(np.log(share + FLOOR), np.float32)
