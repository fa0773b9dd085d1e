"""The networks of the offline algorithms."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from slicepilot.training.networks.node_shares import with_shares
from slicepilot.training.networks.slice_network import NetworkConfig
from slicepilot.training.networks.values import PooledCritics, PooledValue

from .actors import Actor, SliceActor, Spread


class Networks(Protocol):
    """Makes the networks of an algorithm on its device.

    Critics take inputs of B states and actions (B, ...) and give values (critics, B); a value network gives (B,).
    """

    device: torch.device

    def prepare(self, observations: Tensor) -> Tensor:
        """Inputs of all networks: the part of the computation without weights, done once for a dataset."""
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
