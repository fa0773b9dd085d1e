"""Values of states and actions, pooled over any number of slices in any order."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from slicepilot.env.knobs import NUM_KNOBS

from .node_shares import present
from .slice_network import NetworkConfig, SliceEncoder, context_size, linear


def value_head(width: int) -> nn.Sequential:
    """From a `SliceEncoder`'s context (B, C) to a value (B, 1)."""
    return nn.Sequential(linear(context_size(width), width), nn.ReLU(), linear(width, 1, 1.0))


class PooledValue(nn.Module):
    """V(s): rows (B, S, D + 16) of `with_shares` to values (B,)."""

    def __init__(self, network: NetworkConfig) -> None:
        super().__init__()
        self.encoder, self.head = SliceEncoder(network), value_head(network.width)

    def forward(self, rows: Tensor) -> Tensor:
        """Values of situations."""
        return self.head(self.encoder(rows, present(rows))[1]).squeeze(-1)


class PooledCritics(nn.Module):
    """Several independent Q(s, a), for instance the twins of TD3 and SAC."""

    def __init__(self, network: NetworkConfig, critics: int = 2) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(SliceEncoder(network, NUM_KNOBS) for _ in range(critics))
        self.heads = nn.ModuleList(value_head(network.width) for _ in range(critics))

    def forward(self, rows: Tensor, actions: Tensor) -> Tensor:
        """Values (critics, B) of actions (B, S, 3) in rows (B, S, D + 16)."""
        return pooled_values(self.encoders, self.heads, rows, actions)


def pooled_values(encoders: Iterable[nn.Module], heads: Iterable[nn.Module], rows: Tensor, actions: Tensor) -> Tensor:
    """The function of `PooledCritics`, with its parts as arguments."""
    mask = present(rows)
    contexts = (encoder(rows, mask, actions)[1] for encoder in encoders)
    return torch.stack([head(context).squeeze(-1) for head, context in zip(heads, contexts, strict=True)])
