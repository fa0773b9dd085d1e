"""What can be moved: three knobs per slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .slices import FloatArray

NiceScope = Literal["process", "group"]

# CFS quotas (kernel/sched/core.c). Every write refills the group's quota and ends its throttling
# (`tg_set_cfs_bandwidth`), also a write of the value that holds: a busy group whose 20% of a 10 ms period are rewritten
# every 5 ms gets 80%. So writes are rationed: each group has a small stock of them that refills slowly. After a burst
# of changes one in so many periods is left, which bounds the excess to their inverse; what is held back is written as
# soon as the stock allows, with the value asked for then. Small changes wait for a full stock.
MIN_QUOTA_US = 1000  # `min_cfs_quota_period`, for quota and period alike
QUOTA_PERIODS_PER_WRITE = 10.0
QUOTA_WRITE_STOCK = 3.0
QUOTA_DEAD_BAND_RATIO = 0.03


@dataclass(frozen=True, slots=True)
class Knobs:
    """Settings of every slice, float32 (S, L) each.

    Attributes:
        cpu_limit_mcpu: CFS quota in thousandths of a CPU (Kubernetes' ``limits.cpu``); inf = none.
        nice: -20..19, whole numbers. Its meaning is its scope.
        egress_mbps: rate of the slice's egress shaper towards N6; inf = none, 0 = shaper switched on without a rate
            (as the published experiments did): nothing is paced.
        nice_scope: ``process`` renices the UPF's threads, which ranks tasks only inside one cpu cgroup and so does
            nothing between pods; ``group`` sets the cgroup's weight (``cpu.weight.nice``), which does.
    """

    cpu_limit_mcpu: FloatArray
    nice: FloatArray
    egress_mbps: FloatArray
    nice_scope: NiceScope = "group"

    @classmethod
    def none(cls, num_slices: int, num_lanes: int = 1, nice_scope: NiceScope = "group") -> Knobs:
        """No limit, nice 0, no shaping."""
        shape = (num_slices, num_lanes)
        inf = np.float32(np.inf)
        return cls(np.full(shape, inf), np.zeros(shape, np.float32), np.full(shape, inf), nice_scope)

    def copy(self) -> Knobs:
        """A deep copy."""
        return Knobs(self.cpu_limit_mcpu.copy(), self.nice.copy(), self.egress_mbps.copy(), self.nice_scope)
