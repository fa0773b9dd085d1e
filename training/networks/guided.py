"""A policy that corrects a rule's decision; untrained, it leaves the decision unchanged.

Actions are corrections (B, S, 5), see `slicepilot.agents.learned.guide.CORRECTIONS`. Deep Sets as
`slicepilot.training.networks.slice_network`: shared weights per slice, mean and maximum as context.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from slicepilot.agents.learned.guide import NUM_GUIDED
from slicepilot.agents.learned.guide_kernels import NUM_CORRECTIONS

from .node_shares import present
from .slice_network import NetworkConfig, linear


class GuidedEncoder(nn.Module):
    """Rows (B, S, D) to features per slice (B, S, W), zero where absent, and their context (B, 2 W)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rows = nn.Sequential(linear(NUM_GUIDED, width), nn.ReLU(), linear(width, width), nn.ReLU())

    def forward(self, table: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """``mask`` (B, S, 1)."""
        hidden = self.rows(table) * mask
        mean = hidden.sum(1) / mask.sum(1).clamp(min=1.0)
        return hidden, torch.cat([mean, hidden.amax(1)], -1)


class CorrectionHead(nn.Module):
    """Features and context to mean corrections, at first next to none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain: Tensor
        self.register_buffer("gain", torch.ones(NUM_CORRECTIONS), persistent=False)
        self.own, self.context = linear(width, width), linear(2 * width, width)
        self.out = linear(width, NUM_CORRECTIONS, 0.01)

    def forward(self, hidden: Tensor, context: Tensor) -> Tensor:
        """(B, S, 5)."""
        return self.gain * torch.tanh(self.out(torch.relu(self.own(hidden) + self.context(context).unsqueeze(1))))


class GuidedPolicy(nn.Module):
    """The exported function: the guided table (L, S, D) to corrections (L, S, 5) in [-1, 1]."""

    columns = NUM_GUIDED

    def __init__(self, encoder: GuidedEncoder, actor: CorrectionHead) -> None:
        super().__init__()
        self.encoder, self.actor = encoder, actor

    def forward(self, observation: Tensor) -> Tensor:
        """The mean corrections."""
        mask = present(observation)
        return self.actor(*self.encoder(observation, mask)) * mask


def value_head(width: int) -> nn.Module:
    """Context (B, 2 W) to values (B, 1)."""
    return nn.Sequential(linear(2 * width, width), nn.ReLU(), linear(width, 1, 1.0))


def network(config: NetworkConfig) -> tuple[GuidedEncoder, CorrectionHead, GuidedEncoder, nn.Module]:
    """Actor and critic, which share nothing: corrections are small, and a value is mostly about loads."""
    width = config.width
    return GuidedEncoder(width), CorrectionHead(width), GuidedEncoder(width), value_head(width)
