"""Deadline-monotonic priorities: the tighter the delay bound, the higher the priority."""

from __future__ import annotations

import numpy as np

from ...env.backend import Context
from ...env.knobs import Knobs
from ...env.slices import FloatArray, SliceSet
from ...env.telemetry import Telemetry
from .bounds import within_bounds


class DeadlineMonotonic:
    """Nice levels by rank of the delay bound among the slices that send; no limit, no shaping.

    The order is optimal among fixed priorities (Leung and Whitehead, 1982). Nice levels are weights and no strict
    priorities: a rank is worth ``nice_per_rank`` levels, each about a factor of 1.25 of CPU under contention.

    Args:
        nice_per_rank: nice levels between a bound and the next longer one.
        name: as shown in tables.
    """

    request_mcpu: FloatArray | None = None

    def __init__(self, nice_per_rank: float = 5.0, name: str = "deadline-monotonic") -> None:
        self.name, self.nice_per_rank = name, np.float32(nice_per_rank)

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Which slice has the tighter bound."""
        self._slices = slices
        bound = context.promises.delay_bound_us
        # [i, j, lane]: whether slice j goes before slice i.
        self._before = bound[None] < bound[:, None]

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """Ranks among those that send."""
        sends = telemetry.valid & (telemetry.offered_mbps > 0)
        rank = (self._before & sends[None]).sum(axis=1, dtype=np.float32)
        none = np.full_like(rank, np.inf)
        return within_bounds(Knobs.of(none, self.nice_per_rank * rank, none), self._slices)
