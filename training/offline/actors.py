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
from torch.nn import functional

from slicepilot.env.knobs import NUM_KNOBS
from slicepilot.training.networks.node_shares import HALF, present
from slicepilot.training.networks.slice_network import (
    CLIPPED_GAIN,
    HELD,
    SQUASHED_GAIN,
    ActionHead,
    DeterministicPolicy,
    NetworkConfig,
    SliceEncoder,
    SliceHead,
)

LOG_STD_RANGE = (-5.0, 2.0)

Spread = Literal["none", "learned", "by_state"]
"""A deterministic actor; a Gaussian with one deviation per knob around a mean that is clipped to the action's range; or
a Gaussian with a deviation per state that tanh squashes into it."""


@dataclass(frozen=True)
class Choice:
    """What an actor makes of a batch; shapes of actions are (B, S, K) or (B, K).

    Attributes:
        raw: what tanh is taken of; gain: (K,), what it is multiplied by.
        log_std: in the shape of ``raw`` or (K,); None for a deterministic actor.
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
        """Actions (M * B, ...), M for each of the batch, with the held actions where there is nothing to choose."""
        repeats = [len(actions) // len(self.mask)] + [1] * (actions.ndim - 1)
        return torch.where(self.mask.repeat(repeats) > HALF, actions, self.held.repeat(repeats))

    def squared_error(self, actions: Tensor) -> Tensor:
        """(B,), mean over the entries chosen of (mean - action)^2."""
        dims = tuple(range(1, actions.ndim))
        entries = self.mask.sum(dims) * actions.shape[-1]
        return ((self.mean - actions).square() * self.mask).sum(dims) / entries.clamp(min=1.0)

    def log_likelihood(self, actions: Tensor) -> Tensor:
        """(B,), of a Gaussian around the mean action. What an environment clips counts as if it did not."""
        assert self.log_std is not None
        noise = (actions - self.mean) * torch.exp(-self.log_std)
        terms = -0.5 * noise.square() - self.log_std - 0.5 * math.log(2.0 * math.pi)
        return (terms * self.mask).sum(tuple(range(1, actions.ndim)))

    def sample(self, count: int = 1) -> tuple[Tensor, Tensor]:
        """Squashed actions (count * B, ...) and their log-likelihoods (count, B), reparametrised.

        log pi(a) = log N(u) - log (1 - tanh(u)^2), a = tanh(u) (Haarnoja et al. 2018, arXiv:1801.01290, appendix C).
        """
        assert self.log_std is not None
        noise = torch.randn((count, *self.raw.shape), device=self.raw.device)
        wanted = self.raw + noise * self.log_std.exp()
        log_slope = 2.0 * (math.log(2.0) - wanted - functional.softplus(-2.0 * wanted))
        terms = -0.5 * noise.square() - self.log_std - 0.5 * math.log(2.0 * math.pi) - log_slope
        likelihood = (terms * self.mask).sum(tuple(range(2, terms.ndim)))
        return self.or_held(torch.tanh(wanted).flatten(0, 1)), likelihood

    def entries(self) -> Tensor:
        """(B,), how many entries are chosen."""
        return self.mask.sum(tuple(range(1, self.mask.ndim))) * self.raw.shape[-1]


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
        self.head = ActionHead(network, SQUASHED_GAIN if spread == "by_state" else CLIPPED_GAIN)
        log_std = tuple(math.log(std) for std in network.initial_std)
        self.std_head = SliceHead(network.width, NUM_KNOBS, 0.01, log_std) if spread == "by_state" else None
        self.log_std = nn.Parameter(torch.tensor(log_std)) if spread == "learned" else None

    def forward(self, inputs: Tensor) -> Choice:
        """Decide for present slices."""
        mask = present(inputs)
        hidden, context = self.encoder(inputs, mask)
        raw = self.head.unsquashed(inputs, hidden, context)
        log_std = self.log_std if self.std_head is None else self.std_head(hidden, context)
        return Choice(raw, self.head.gain, bounded(log_std), mask, inputs[..., HELD])

    def deterministic(self) -> DeterministicPolicy:
        """The policy that a bundle holds."""
        return DeterministicPolicy(self.encoder, self.head)


def bounded(log_std: Tensor | None) -> Tensor | None:
    """A logarithm of a deviation inside `LOG_STD_RANGE`."""
    return None if log_std is None else log_std.clamp(*LOG_STD_RANGE)
