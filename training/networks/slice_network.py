"""One policy for any number of slices: shared weights per slice, pooled context, equivariant to their order.

Deep Sets (Zaheer et al. 2017, arXiv:1703.06114): an encoder sees a slice's row of the observation and its shares of the
node. The context is the mean and the maximum over the present slices and their total demand on the node. A head sees
row and context. No weight depends on the number of slices, so the same ``state_dict`` serves any number.

Shapes: observations (B, S * D) as the environments give them, or the table (B, S, D); actions (B, S, 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import ConfigDict, Field
from torch import Tensor, nn

from slicepilot.agents.learned.deep_sets import NUM_SHARES
from slicepilot.agents.learned.shares import NUM_INPUTS
from slicepilot.agents.learned.shares_kernel import MAX_SHARE
from slicepilot.env.encoding import FEATURES, KNOB_FEATURES, NUM_FEATURES
from slicepilot.env.knobs import NUM_KNOBS

from .node_shares import HALF, present, with_shares

HELD = slice(FEATURES.index(KNOB_FEATURES[0]), FEATURES.index(KNOB_FEATURES[0]) + NUM_KNOBS)
# The mean action is gain * tanh(z) per knob, clipped to [-1, 1]. An egress rate rests well inside the "none" end of its
# axis despite exploration noise; a CPU limit must not, or nothing would ever pull it back to what the slice needs.
CLIPPED_GAIN = (1.0, 1.0, 1.25)
SQUASHED_GAIN = (1.0, 1.0, 1.0)
INITIAL_MEAN = (0.8, 0.0, 1.0)  # close to no control: generous limits, nice 0, no shaping
MAX_TANH = 0.98
Deviation = Annotated[float, Field(gt=0, le=2)]


@dataclass(frozen=True)
class NetworkConfig:
    """Size of the network.

    Attributes:
        width: neurons of every hidden layer.
        initial_std, final_std: standard deviation of the exploration noise per knob (CPU limit, nice, egress), on the
            action's scale. PPO's shrinks geometrically from the first to the second; SAC and the offline algorithms
            learn their own from the first.
        initial_order_std, final_order_std: the same of the bids and needs of PPO's corrections
            (`slicepilot.agents.learned.guide.CORRECTIONS`).
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    width: Annotated[int, Field(ge=8, le=1024)] = 64
    initial_std: tuple[Deviation, Deviation, Deviation] = (0.25, 0.2, 0.2)
    final_std: tuple[Deviation, Deviation, Deviation] = (0.03, 0.06, 0.02)
    initial_order_std: tuple[Deviation, Deviation] = (0.15, 0.15)
    final_order_std: tuple[Deviation, Deviation] = (0.05, 0.05)


def as_table(observation: Tensor, columns: int = NUM_FEATURES) -> Tensor:
    """(B, S * D) or (B, S, D) to (B, S, D) with D ``columns``."""
    return observation if observation.ndim == 3 else observation.reshape(len(observation), -1, columns)


def linear(inputs: int, outputs: int, gain: float = math.sqrt(2.0)) -> nn.Linear:
    """Orthogonal weights and zero bias, as PPO's reference implementations start."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def context_size(width: int) -> int:
    """Mean, maximum and sums of shares: C."""
    return 2 * width + NUM_SHARES


class SliceEncoder(nn.Module):
    """Rows (B, S, D + 16) to features per slice (B, S, W), zero where absent, and their context (B, C).

    Rows are those of `with_shares`. An encoder made for ``more`` further columns takes them in a table of their own.
    """

    def __init__(self, config: NetworkConfig, more: int = 0) -> None:
        super().__init__()
        width = config.width
        self.rows = nn.Sequential(linear(NUM_INPUTS + more, width), nn.ReLU(), linear(width, width), nn.ReLU())

    def forward(self, rows: Tensor, mask: Tensor, more: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``mask`` (B, S, 1), ``more`` (B, S, columns). Features are not negative, so that zeros of absent slices do
        not move the maximum."""
        hidden = self.rows(rows if more is None else torch.cat([rows, more], -1)) * mask
        mean = hidden.sum(1) / mask.sum(1).clamp(min=1.0)
        sums = rows[..., NUM_FEATURES : NUM_FEATURES + NUM_SHARES].sum(1).clamp(max=MAX_SHARE)
        return hidden, torch.cat([mean, hidden.amax(1), sums], -1)


class SliceHead(nn.Module):
    """Features per slice (B, S, W) and context (B, C) to outputs per slice (B, S, outputs)."""

    def __init__(self, width: int, outputs: int, gain: float, bias: tuple[float, ...] | None = None) -> None:
        super().__init__()
        self.own, self.context = linear(width, width), linear(context_size(width), width)
        self.out = linear(width, outputs, gain)
        if bias is not None:
            self.out.bias.data = torch.tensor(bias)

    def forward(self, hidden: Tensor, context: Tensor) -> Tensor:
        """One hidden layer; the context's part is computed once for all slices."""
        return self.out(torch.relu(self.own(hidden) + self.context(context).unsqueeze(1)))


def _initial_bias(gains: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(math.atanh(min(mean / gain, MAX_TANH)) for mean, gain in zip(INITIAL_MEAN, gains, strict=True))


class ActionHead(nn.Module):
    """Mean actions (B, S, 3): a `SliceHead` and a linear path from the row, then gain * tanh.

    The linear path is what "a limit a little above the present need" needs; the head bends it. Of nice only what tells
    the slices apart counts, so before the tanh its mean over the present slices is taken out: nothing would hold that
    mean in training, and where it has drifted to an end of the axis no slice differs from another.
    """

    gain: Tensor

    def __init__(self, network: NetworkConfig, gains: tuple[float, ...]) -> None:
        super().__init__()
        self.head = SliceHead(network.width, NUM_KNOBS, 0.01, _initial_bias(gains))
        self.direct = nn.Linear(NUM_INPUTS, NUM_KNOBS, bias=False)
        nn.init.zeros_(self.direct.weight)
        self.register_buffer("gain", torch.tensor(gains))

    def unsquashed(self, rows: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Actions before tanh."""
        wanted, mask = self.head(hidden, context) + self.direct(rows[..., :NUM_INPUTS]), present(rows)
        limit, nice, egress = wanted.split(1, -1)
        mean = (nice * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1.0)
        return torch.cat([limit, nice - mean, egress], -1)

    def forward(self, rows: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """From the rows (B, S, D + 16), their features (B, S, W) and context (B, C)."""
        return self.gain * torch.tanh(self.unsquashed(rows, hidden, context))


class DeterministicPolicy(nn.Module):
    """The exported function: rows (L, S, D + 16) to actions (L, S, 3) in [-1, 1]; it takes observations as well.

    A slice that is absent or could not be measured keeps the knobs it has: they are part of its row.
    """

    columns = NUM_INPUTS

    def __init__(self, encoder: SliceEncoder, actor: ActionHead) -> None:
        super().__init__()
        self.encoder, self.actor = encoder, actor

    def forward(self, observation: Tensor) -> Tensor:
        """Mean action, held where a slice is absent."""
        rows, mask = with_shares(observation), present(observation)
        mean = self.actor(rows, *self.encoder(rows, mask))
        return torch.where(mask > HALF, mean, observation[..., HELD]).clamp(-1.0, 1.0)
