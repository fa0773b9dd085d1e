"""Proportional share: divide the node's CPU by weight times recent demand."""

from __future__ import annotations

import numpy as np

from slicepilot.agents.bounds import filled, most_cpu_mcpu, smoothing, within_bounds
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

# What a slice would use is extrapolated from what it carries; a slice that carries next to nothing says little.
MAX_EXTRAPOLATION = np.float32(20.0)
TINY = np.float32(1e-3)
AVERAGED_S = 5.0
"""Time constant of the average over the demand."""


class ProportionalShare:
    """CPU limit of slice i = capacity x w_i d_i / sum_j w_j d_j, with w the weight and d the recent demand.

    Demand is CPU use times offered over carried rate (what the slice would have used), at most what its threads can
    use, in an exponential average. What a slice cannot use of its share is divided among the others in the same way
    (a weighted max-min share). Not work-conserving within a period: that is what a share by limits costs.

    Args:
        node_share: what is shared out; the rest is for the kernel's part of the work and for other pods.
    """

    name = "proportional-share"
    request_mcpu: FloatArray | None = None

    def __init__(self, node_share: float = 0.85) -> None:
        self.node_share = node_share

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Forget the demand."""
        self._slices = slices
        self._weight = context.promises.weight
        self._capacity = np.float32(1e3 * self.node_share) * context.logical_cpus
        self._most = most_cpu_mcpu(slices, context)
        self._alpha = smoothing(context.period_s, AVERAGED_S)
        self._demand = np.zeros_like(self._most)
        self._first = True

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """Shares of the node by weight and demand."""
        missing = telemetry.offered_mbps / np.maximum(telemetry.carried_mbps, TINY)
        demand = telemetry.cpu_use_mcpu * np.clip(missing, np.float32(1.0), MAX_EXTRAPOLATION)
        np.minimum(demand, self._most, out=demand)
        demand *= telemetry.valid
        # The first measurement counts in full.
        alpha = np.ones_like(self._alpha) if self._first else self._alpha
        self._first = False
        self._demand += alpha * (demand - self._demand)
        claim = self._weight * self._demand
        limit = filled(np.zeros_like(claim), self._most, claim, self._capacity)
        # No slice has any demand yet.
        limit = np.where(claim.sum(axis=0) > TINY, limit, np.float32(np.inf))
        return within_bounds(Knobs.of(limit, np.zeros_like(limit), np.full_like(limit, np.inf)), self._slices)
