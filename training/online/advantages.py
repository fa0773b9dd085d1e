"""Advantages for lanes of different control periods, relative to other actions on the same input."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import RolloutBuffer
from torch import Tensor

from slicepilot.agents.learned.guide import NUM_GUIDED
from slicepilot.env.arrays import FloatArray
from slicepilot.env.encoding import FEATURES, NUM_FEATURES, PERIOD_RANGE_S

PERIOD = FEATURES.index("control_period")


@dataclasses.dataclass(frozen=True)
class Discount:
    """Discount per control period, which depends on its length.

    What a decision does is over within a few tenths of a second (CFS periods, socket buffers, run queues) or within the
    period, whichever is longer: ``gamma`` per ``span_s`` of time, but not less than ``gamma`` and not more than
    ``most`` per period.
    """

    gamma: float
    span_s: float = 0.25
    most: float = 0.95

    def per_period(self, period_s: FloatArray) -> FloatArray:
        """Discounts in the shape of ``period_s``."""
        return np.clip(self.gamma ** (period_s / self.span_s), self.gamma, max(self.gamma, self.most))


def observed_period_s(observations: FloatArray, columns: int = NUM_FEATURES) -> FloatArray:
    """Control periods (T, L) in seconds that observations (T, L, S * D) of D ``columns`` hold."""
    low, high = PERIOD_RANGE_S
    encoded = observations.reshape(*observations.shape[:2], -1, columns)[:, :, 0, PERIOD]
    return low * (high / low) ** encoded


class AdvantageBuffer(RolloutBuffer):
    """A rollout buffer with its own generalised advantages (Schulman et al. 2016, arXiv:1506.02438).

    The discount is the lane's own (`Discount`). Then advantages lose their mean over the lanes that meet the same
    input: in an input-driven process the loads, not the actions, make most of a return's variance, and a baseline that
    may depend on the whole input sequence removes it and leaves the policy gradient unbiased (Mao et al. 2019,
    "Variance reduction for reinforcement learning in input-driven environments", arXiv:1807.02264). A mean that
    contains the lane itself shrinks all advantages by the same factor, which their normalisation undoes.

    Lanes are ordered (group, copy, input) as `slicepilot.training.online.vec_env.Sb3VecEnv` puts together backends
    with copies. The critic's targets are not touched by the baseline.

    Args:
        discount: per control period. The value after a run's last period still counts with SB3's own scalar gamma: at
            the end of each run, lanes of short periods learn from a target that lies too near the mean.
        groups, copies: of lanes; with a single copy there is no baseline.
        references: the first copies, from which nothing is learned: others act there.
    """

    def __init__(
        self,
        *args: Any,
        discount: Discount,
        groups: int,
        copies: int,
        references: int = 0,
        **kwargs: Any,
    ) -> None:
        self.discount, self.groups, self.copies, self.references = discount, groups, copies, references
        super().__init__(*args, **kwargs)

    def compute_returns_and_advantage(self, last_values: Tensor, dones: np.ndarray) -> None:
        """Fill ``returns`` and ``advantages``, (T, L) each."""
        steps = self.buffer_size
        gamma = self.discount.per_period(observed_period_s(self.observations, NUM_GUIDED))
        values = np.concatenate([self.values, last_values.detach().numpy().reshape(1, -1)])
        goes_on = 1.0 - np.concatenate([self.episode_starts[1:], dones[None].astype(np.float32)])
        delta = self.rewards + gamma * goes_on * values[1:] - values[:-1]
        advantage = np.zeros_like(values[0])
        for t in reversed(range(steps)):
            advantage = delta[t] + gamma[t] * self.gae_lambda * goes_on[t] * advantage
            self.advantages[t] = advantage
        self.returns = self.advantages + self.values
        if self.copies > 1:
            shape, first = (steps, self.groups, self.copies, -1), self.references
            grouped = self.advantages.reshape(shape)
            grouped -= grouped[:, :, first:].mean(axis=2, keepdims=True)
            grouped[:, :, :first] = 0.0
            self.returns.reshape(shape)[:, :, :first] = self.values.reshape(shape)[:, :, :first]
