"""Times in which somebody other than the agent sets the knobs: so it meets states that it would not bring about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slicepilot.env.arrays import FloatArray
from slicepilot.env.knobs import Knobs

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class Disturbances:
    """N spans per lane in which other knobs hold.

    On its own runs a policy sees only those slices starve that it lets starve, and takes starving itself for a sign
    that a slice does not count: thrown off its path it goes on starving the slice that counts most.

    Attributes:
        start, stop: first period, and the first one after the last, (N, L).
        knobs: what holds meanwhile, (N, 3, S, L), rows as of `Knobs`.
    """

    start: IntArray
    stop: IntArray
    knobs: FloatArray

    def override(self, knobs: Knobs, period: int) -> Knobs:
        """The knobs of a period: those given where nothing is disturbed."""
        disturbed = (self.start <= period) & (period < self.stop)
        spans = np.flatnonzero(disturbed.any(axis=1))
        if not len(spans):
            return knobs
        values = knobs.values
        for n in spans:
            values = np.where(disturbed[n], self.knobs[n], values)
        return Knobs(values, knobs.nice_scope)
