"""Sets of networks for the offline algorithms: the weight-shared ones for slices, perceptrons for other tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from slicepilot.training.networks.node_shares import with_shares
from slicepilot.training.networks.slice_network import NetworkConfig
from slicepilot.training.networks.values import PooledCritics, PooledValue

from .actors import Actor, FlatActor, SliceActor, Spread, perceptron

LEAST_STD = 1e-3


class Networks(Protocol):
    """Makes the networks of an algorithm, on one device.

    Critics take inputs of B states and actions (M * B, ...), M in each state, and give values (critics, M * B); a value
    network gives (B,).
    """

    device: torch.device

    def prepare(self, observations: Tensor) -> Tensor:
        """Inputs of all networks: what of the observations no weight touches, computed once for a dataset."""
        ...

    def actor(self, spread: Spread) -> Actor:
        """A policy."""
        ...

    def critics(self, count: int = 2) -> nn.Module:
        """Independent Q(s, a)."""
        ...

    def value(self) -> nn.Module:
        """V(s)."""
        ...


class SliceNetworks:
    """Weight-shared networks of `slicepilot.training.networks`; observations are tables (B, S, D)."""

    def __init__(self, network: NetworkConfig, device: torch.device) -> None:
        self.network, self.device = network, device

    def prepare(self, observations: Tensor) -> Tensor:
        """Rows (B, S, D + 16)."""
        return with_shares(observations).to(self.device)

    def actor(self, spread: Spread) -> Actor:
        """A policy for any number of slices."""
        return SliceActor(self.network, spread).to(self.device)

    def critics(self, count: int = 2) -> nn.Module:
        """Pooled critics."""
        return PooledCritics(self.network, count).to(self.device)

    def value(self) -> nn.Module:
        """A pooled value."""
        return PooledValue(self.network).to(self.device)


class FlatNetworks:
    """Perceptrons on standardised observations (B, D), for tasks without slices.

    Args:
        observations: (N, D), those of the dataset; their mean and deviation are the scale.
        actions: entries of an action, K.
        hidden: sizes of the hidden layers.
        device: where they live.
    """

    def __init__(self, observations: Tensor, actions: int, hidden: Sequence[int], device: torch.device) -> None:
        self.device, self.actions, self.hidden = device, actions, tuple(hidden)
        self.mean, self.std = observations.mean(0), observations.std(0).clamp(min=LEAST_STD)

    def prepare(self, observations: Tensor) -> Tensor:
        """Standardised observations."""
        return ((observations - self.mean) / self.std).to(self.device)

    def actor(self, spread: Spread) -> Actor:
        """A policy."""
        return FlatActor(self.mean, self.std, self.actions, self.hidden, spread).to(self.device)

    def critics(self, count: int = 2) -> nn.Module:
        """Critics of state and action."""
        return _FlatCritics(len(self.mean), self.actions, self.hidden, count).to(self.device)

    def value(self) -> nn.Module:
        """A value of the state."""
        return _FlatValue(len(self.mean), self.hidden).to(self.device)


class _FlatValue(nn.Module):
    def __init__(self, inputs: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.net = nn.Sequential(perceptron(inputs, hidden), nn.Linear(hidden[-1], 1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs).squeeze(-1)


class _FlatCritics(nn.Module):
    def __init__(self, inputs: int, actions: int, hidden: Sequence[int], count: int) -> None:
        super().__init__()
        self.each = nn.ModuleList(_FlatValue(inputs + actions, hidden) for _ in range(count))

    def forward(self, inputs: Tensor, actions: Tensor) -> Tensor:
        joint = torch.cat([inputs.repeat(len(actions) // len(inputs), 1), actions], -1)
        return torch.stack([critic(joint) for critic in self.each])
