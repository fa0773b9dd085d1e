"""Policies as offline algorithms need them: a mean action, a spread around it, and which entries are theirs to choose.

A slice that is absent or could not be measured keeps its knobs: nothing is chosen for it, and it counts in no
likelihood. Tasks without slices have no such entries.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from slicepilot.training.networks.node_shares import HALF, present
from slicepilot.training.networks.slice_network import (
    CLIPPED_GAIN,
    HELD,
    ActionHead,
    DeterministicPolicy,
    NetworkConfig,
    SliceEncoder,
)

LOG_STD_RANGE = (-5.0, 2.0)

Spread = Literal["none", "learned"]
"""A deterministic actor, or a Gaussian with one deviation per knob around a mean clipped to the action's range."""


@dataclass(frozen=True)
class Choice:
    """An actor's output for a batch; shapes of actions are (B, S, K) or (B, K).

    Attributes:
        raw: what tanh is taken of; gain: (K,), what it is multiplied by.
        log_std: (K,); None for a deterministic actor.
        mask: (B, S, 1) or (B, 1), 1 where there is something to choose.
        held: what holds where there is not, in the shape of ``raw``.
    """

    raw: Tensor
    gain: Tensor
    log_std: Tensor | None
    mask: Tensor
    held: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean action, not clipped."""
        return self.gain * torch.tanh(self.raw)

    @property
    def action(self) -> Tensor:
        """The action without noise."""
        return self.or_held(self.mean.clamp(-1.0, 1.0))

    def or_held(self, actions: Tensor) -> Tensor:
        """Actions, replaced by the held actions where there is nothing to choose."""
        return torch.where(self.mask > HALF, actions, self.held)

    def squared_error(self, actions: Tensor) -> Tensor:
        """(B,), mean over the entries chosen of (mean - action)^2."""
        dims = tuple(range(1, actions.ndim))
        entries = self.mask.sum(dims) * actions.shape[-1]
        return ((self.mean - actions).square() * self.mask).sum(dims) / entries.clamp(min=1.0)

    def log_likelihood(self, actions: Tensor) -> Tensor:
        """(B,), of a Gaussian around the mean action. Clipping by the environment is ignored."""
        assert self.log_std is not None
        noise = (actions - self.mean) * torch.exp(-self.log_std)
        terms = -0.5 * noise.square() - self.log_std - 0.5 * math.log(2.0 * math.pi)
        return (terms * self.mask).sum(tuple(range(1, actions.ndim)))


class Actor(nn.Module, ABC):
    """Inputs as `slicepilot.training.offline.networks.Networks.prepare` gives them to a `Choice`."""

    @abstractmethod
    def forward(self, inputs: Tensor) -> Choice:
        """Decide for a batch."""

    @abstractmethod
    def deterministic(self) -> nn.Module:
        """From observations to actions without noise, on this actor's weights."""


class SliceActor(Actor):
    """The weight-shared policy for slices: rows (B, S, D + 16) of `with_shares` to actions (B, S, 3)."""

    def __init__(self, network: NetworkConfig, spread: Spread) -> None:
        super().__init__()
        self.encoder = SliceEncoder(network)
        self.head = ActionHead(network, CLIPPED_GAIN)
        log_std = [math.log(std) for std in network.initial_std]
        self.log_std = nn.Parameter(torch.tensor(log_std)) if spread == "learned" else None

    def forward(self, inputs: Tensor) -> Choice:
        """Decide for present slices."""
        mask = present(inputs)
        hidden, context = self.encoder(inputs, mask)
        raw = self.head.unsquashed(inputs, hidden, context)
        return Choice(raw, self.head.gain, bounded(self.log_std), mask, inputs[..., HELD])

    def deterministic(self) -> DeterministicPolicy:
        """The policy that a bundle holds."""
        return DeterministicPolicy(self.encoder, self.head)


def bounded(log_std: Tensor | None) -> Tensor | None:
    """A logarithm of a deviation inside `LOG_STD_RANGE`."""
    return None if log_std is None else log_std.clamp(*LOG_STD_RANGE)
