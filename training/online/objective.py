"""The training objective, on the axes on which policies are judged (`slicepilot.training.evaluation.axes`).

A policy is rewarded for what slices carry beyond their promises and for CPU that limits leave free. Promises are a
constraint: they may be broken for no more than a share of the time for which the better of two references breaks them
on the same arrivals (`slicepilot.training.online.references`). The better reference is chosen over all deployments: no
single policy reaches the lower of the two in each deployment, and then the constraint alone would count. A multiplier
grows while promises are broken for longer and falls while they are not (the Lagrangian of a constrained Markov decision
process; Altman 1999; Tessler et al. 2019, "Reward Constrained Policy Optimization", arXiv:1805.11074).

The constraint is on the geometric mean over deployments: a doubling counts the same where few promises break and where
no policy keeps half of them, while a plain mean would only reflect the latter. In each deployment an axis has the more
weight the further the policy is behind the reference there, so that gains in a deployment or on an axis do not pay for
losses elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.promises import PromiseMeter
from slicepilot.env.telemetry import Telemetry

from .references import NUM_REFERENCES

LEAST_OFFERED_MBPS = 0.1
# Share of the time; less than this counts as this much.
FLOOR = np.float32(0.005)
# Values assumed for so many periods before a run, because its first periods say little.
PRIOR_PERIODS = np.float32(8.0)
PRIORS = np.asarray([[0.05], [0.5], [0.2]], np.float32)  # broken, best effort, wasted
REFERENCE_RATE = np.float32(0.01)  # per vector step
LEAST_FACTORS, MOST_FACTOR = np.asarray([0.25, 1.0, 0.05], np.float32), 8.0
# A loss of this much of the rule's best effort is as bad as breaking promises, or wasting CPU, e times as much.
BEST_EFFORT_SCALE = np.float32(0.01)
BEST_EFFORT_FLOOR, WASTED_FLOOR = np.float32(0.02), np.float32(0.01)
# Exchange rate between the rule's best effort and the CPU that it wastes: 2 points for 5% (`axes`).
WASTED_PRICE = np.float32(0.4)


class Judge:
    """Broken promises and best effort in each period of a run, such that their sums are the figures of an evaluation.

    Promised rates, and so the traffic beyond them, are means over `AVERAGING_WINDOW_S`. A slice whose mean is above its
    promise adds to best effort the difference of its rate in a period from the promise, which may be negative.
    """

    def __init__(self, context: Context) -> None:
        self._meter, self._promises = PromiseMeter(context), context.promises

    def __call__(self, telemetry: Telemetry) -> FloatArray:
        """To be called once a period: (2, L), the share of the weight whose promise is broken, and what slices carry
        beyond their promises over what they offer beyond them."""
        meter, promises = self._meter, self._promises
        weight = promises.weight * telemetry.valid
        broken = (weight * meter.broken(telemetry)).sum(axis=0) / np.maximum(weight.sum(axis=0), 1e-6)
        committed = promises.committed_mbps
        counts = telemetry.valid & (meter.carried_mbps > committed)
        carried = ((telemetry.carried_mbps - committed) * counts).sum(axis=0)
        offered = (np.maximum(meter.offered_mbps - committed, 0.0) * telemetry.valid).sum(axis=0)
        return np.asarray([broken, carried / np.maximum(offered, LEAST_OFFERED_MBPS)], np.float32)


@dataclass
class Objective:
    """The reward of each lane: best effort and free CPU, less the price of broken promises.

    Lanes are ordered (group, copy, input) as `slicepilot.training.online.vec_env.Sb3VecEnv` has them; the first
    `NUM_REFERENCES` copies are the references', the rule first.

    Attributes:
        over_reference: what the geometric mean of broken time may be, over that of the better reference.
        groups, copies: of lanes; copies are the same deployment.
        slope: how much more an axis counts in a deployment in which the policy is behind on it; 0 = not at all.
        multiplier: cost of a break that makes its deployment's broken time e times as much; least, most: it stays
            between them.
        rate: how fast it follows, per vector step.
        horizon: deployments over which the mean is taken.
        average: the mean logarithm of broken time over the reference's; references: of that of each reference.
    """

    over_reference: float
    groups: int
    copies: int
    slope: float = 2.0
    multiplier: float = 0.5
    least: float = 0.02
    most: float = 5.0
    rate: float = 2e-3
    horizon: float = 200.0
    average: float = 0.0
    references: FloatArray = field(default_factory=lambda: np.zeros(NUM_REFERENCES, np.float32))
    _sums: FloatArray = field(default_factory=lambda: np.zeros((3, 0), np.float32), repr=False)
    _periods: FloatArray = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)

    def __call__(
        self, broken: FloatArray, best_effort: FloatArray, wasted: FloatArray, ended: np.ndarray
    ) -> FloatArray:
        """The reward (L,) of a period.

        Args:
            broken: share of the weight whose promise is broken, (L,).
            best_effort: of what is offered beyond promises, (L,), as `Judge` has it.
            wasted: of the node's CPUs, (L,), as `slicepilot.env.reward.RewardModel` has it, but not negative.
            ended: where runs end, (L,).
        """
        if self._periods.shape != broken.shape:
            self._sums, self._periods = np.zeros((3, *broken.shape), np.float32), np.zeros_like(broken)
        self._sums += (broken, best_effort, wasted)
        self._periods += 1
        table = (self._sums + PRIOR_PERIODS * PRIORS) / (self._periods + PRIOR_PERIODS)
        table = table.reshape(3, self.groups, self.copies, -1)
        own = table[:, :, NUM_REFERENCES:].mean(axis=2)
        rule = table[:, :, 0]
        references = table[0, :, :NUM_REFERENCES]
        newest = np.log(references + FLOOR).mean(axis=(0, 2))
        self.references += REFERENCE_RATE * (newest - self.references)
        reference = references[:, self.references.argmin()]
        over = np.log((own[0] + FLOOR) / (reference + FLOOR))
        behind = np.stack(
            [
                over - math.log(self.over_reference),
                (rule[1] - own[1]) / ((rule[1] + BEST_EFFORT_FLOOR) * BEST_EFFORT_SCALE),
                np.log((own[2] + WASTED_FLOOR) / (rule[2] + WASTED_FLOOR)),
            ]
        )
        factors = np.clip(1.0 + self.slope * behind, LEAST_FACTORS[:, None, None], MOST_FACTOR)
        factors[0] *= self.multiplier / (np.maximum(own[0], reference) + FLOOR)
        factors[1] /= rule[1] + BEST_EFFORT_FLOOR
        factors[2] *= WASTED_PRICE / (rule[2] + WASTED_FLOOR)
        shape = (3, self.groups, self.copies, factors.shape[-1])
        cost, gain, waste = np.broadcast_to(factors[:, :, None], shape).reshape(3, -1)
        if ended.any():
            done = ended.reshape(shape[1:])[:, 0]
            part = min(int(done.sum()) / self.horizon, 1.0)
            self.average += part * (float(over[done].mean()) - self.average)
            self._sums[:, ended], self._periods[ended] = 0.0, 0.0
        excess = self.average - math.log(self.over_reference)
        grown = self.multiplier * math.exp(self.rate * min(max(20.0 * excess, -1.0), 1.0))
        self.multiplier = min(max(grown, self.least), self.most)
        return np.asarray(gain * best_effort - waste * wasted - cost * broken, np.float32)

    @property
    def over(self) -> float:
        """The geometric mean now, over the better reference's."""
        return math.exp(self.average)

    def state(self) -> dict[str, float]:
        """State for a checkpoint."""
        return {"multiplier": self.multiplier, "average": self.average}

    def restore(self, state: dict[str, float]) -> None:
        """Continue from `state`."""
        self.multiplier, self.average = state["multiplier"], state["average"]
