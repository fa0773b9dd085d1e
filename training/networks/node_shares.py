"""Each slice's needs as shares of the node's resources (`slicepilot.agents.learned.shares`), for tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from slicepilot.agents.learned.shares import NUM_INPUTS, add_shares
from slicepilot.env.encoding import FEATURES, NUM_FEATURES

ACTIVE = FEATURES.index("active")
HALF = 0.5


def present(table: Tensor) -> Tensor:
    """1 for slices that are there, (B, S, 1)."""
    return (table[..., ACTIVE : ACTIVE + 1] > HALF).to(table.dtype)


def with_shares(table: Tensor) -> Tensor:
    """Observations (B, S, D) to rows (B, S, D + 16); rows are returned unchanged."""
    if table.shape[-1] == NUM_INPUTS:
        return table
    rows = np.empty((*table.shape[:2], NUM_INPUTS), np.float32)
    rows[..., :NUM_FEATURES] = table.cpu().numpy()
    add_shares(rows)
    return torch.from_numpy(rows).to(table.device)
