"""A policy that starts at the greedy rule's decision and learns how far to go from it.

An action is a table of departures (B, S, 3) in [-1, 1], 0 = what the rule does. Towards lower values a limit goes down
from the slice's share, towards higher ones up and then away; beside a rule that leaves a slice free, the share is what
the slice would be limited to, and nothing happens near 0. Nice moves by up to `NICE_REACH` of its axis. An egress that
the node cannot pace is left alone.

Deep Sets as `slicepilot.training.networks.slice_network`: shared weights per slice, mean and maximum as context.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...agents.learned.guide import GUIDE_FEATURES, NUM_GUIDED, RULE_AT
from ...env.encoding import NONE_ABOVE
from ...env.knobs import NUM_KNOBS
from .node_shares import HALF, present
from .slice_network import HELD, NetworkConfig, linear

RULE = slice(RULE_AT, RULE_AT + NUM_KNOBS)
SHARE_CPU, SHARE_EGRESS, PACER_NONE = (
    RULE_AT + GUIDE_FEATURES.index(name) for name in ("share_cpu", "share_egress", "pacer_none")
)
NONE = float(NONE_ABOVE)
# A slice that the rule leaves free stays free above the first departure; one that it limits is let go above the second.
FREE_ABOVE, LET_GO_ABOVE = -0.3, 0.6
# Departures to positions on the axes: a CPU limit moves by up to a factor of some 8, an egress rate by some 7.
CPU_REACH, EGRESS_REACH, NICE_REACH = 1.0, 0.4, 0.5
FREE_OFFSET = 0.6  # where a free slice is first limited, its limit is twice its share


def knob_action(departure: Tensor, table: Tensor) -> Tensor:
    """Actions on the knobs' own axes (B, S, 3) for departures (B, S, 3) from what the rule says in a table (B, S, D).

    A slice that is absent keeps its knobs.
    """
    rule = table[..., RULE]
    limit = _limit(departure[..., 0], rule[..., 0], table[..., SHARE_CPU], CPU_REACH)
    egress = _limit(departure[..., 2], rule[..., 2], table[..., SHARE_EGRESS], EGRESS_REACH)
    egress = torch.where(table[..., PACER_NONE] > HALF, torch.ones_like(egress), egress)
    nice = rule[..., 1] + NICE_REACH * departure[..., 1]
    action = torch.stack([limit, nice, egress], -1)
    return torch.where(present(table) > HALF, action, table[..., HELD]).clamp(-1.0, 1.0)


def _limit(departure: Tensor, rule: Tensor, share: Tensor, reach: float) -> Tensor:
    free = (rule > NONE).to(rule.dtype)
    none = departure > LET_GO_ABOVE + (FREE_ABOVE - LET_GO_ABOVE) * free
    # A rule that limits says to what, within its dead band; one that does not, what the share would be.
    start = free * (share + FREE_OFFSET * reach) + (1.0 - free) * rule
    return torch.where(none, torch.ones_like(rule), (start + reach * departure).clamp(-1.0, NONE))


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


class DepartureHead(nn.Module):
    """Features and context to mean departures, at first next to none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.context = linear(width, width), linear(2 * width, width)
        self.out = linear(width, NUM_KNOBS, 0.01)

    def forward(self, hidden: Tensor, context: Tensor) -> Tensor:
        """(B, S, 3)."""
        return torch.tanh(self.out(torch.relu(self.own(hidden) + self.context(context).unsqueeze(1))))


class GuidedPolicy(nn.Module):
    """What is exported: the guided table (L, S, D) to actions (L, S, 3) in [-1, 1]."""

    columns = NUM_GUIDED

    def __init__(self, encoder: GuidedEncoder, actor: DepartureHead) -> None:
        super().__init__()
        self.encoder, self.actor = encoder, actor

    def forward(self, observation: Tensor) -> Tensor:
        """The mean departure, as knobs."""
        return knob_action(self.actor(*self.encoder(observation, present(observation))), observation)


def value_head(width: int) -> nn.Module:
    """Context (B, 2 W) to values (B, 1)."""
    return nn.Sequential(linear(2 * width, width), nn.ReLU(), linear(width, 1, 1.0))


def network(config: NetworkConfig) -> tuple[GuidedEncoder, DepartureHead, GuidedEncoder, nn.Module]:
    """Actor and critic, which share nothing: departures are small, and a value is mostly about loads."""
    width = config.width
    return GuidedEncoder(width), DepartureHead(width), GuidedEncoder(width), value_head(width)
