"""What can be moved: three knobs per slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from .arrays import BoolArray, FloatArray

NiceScope = Literal["process", "group"]
KnobName = Literal["cpu_limit_mcpu", "nice", "egress_mbps"]
KNOB_FIELDS: tuple[KnobName, ...] = ("cpu_limit_mcpu", "nice", "egress_mbps")
NUM_KNOBS = len(KNOB_FIELDS)
CPU_LIMIT, NICE, EGRESS = range(NUM_KNOBS)

# CFS quotas (kernel/sched/core.c). Every write refills the group's quota and ends its throttling
# (`tg_set_cfs_bandwidth`), also a write of the value that holds: a busy group whose 20% of a 10 ms period are rewritten
# every 5 ms gets 80%. So writes are rationed: each group has a small stock of them that refills slowly. After a burst
# of changes only every `QUOTA_PERIODS_PER_WRITE`-th period has a write, which bounds the excess to the inverse of that
# number. A change that is held back is written as soon as the stock allows, with the value that is requested then.
# Small changes wait for a full stock.
MIN_QUOTA_US = 1000  # `min_cfs_quota_period`, for quota and period alike
QUOTA_PERIODS_PER_WRITE = 10.0
QUOTA_WRITE_STOCK = 3.0
QUOTA_DEAD_BAND_RATIO = 0.03


@dataclass(frozen=True, slots=True)
class Knobs:
    """Settings of every slice, for L lanes at once (a live node is one lane).

    Attributes:
        values: float32 (3, S, L), rows in the order of `KNOB_FIELDS`. Nobody writes to them once they are handed on.
        nice_scope: ``process`` renices the UPF's threads, which ranks tasks only inside one cpu cgroup and so does
            nothing between pods; ``group`` sets the cgroup's weight (``cpu.weight.nice``), which does.
    """

    values: FloatArray
    nice_scope: NiceScope = "group"

    @classmethod
    def of(
        cls,
        cpu_limit_mcpu: npt.ArrayLike,
        nice: npt.ArrayLike,
        egress_mbps: npt.ArrayLike,
        nice_scope: NiceScope = "group",
    ) -> Knobs:
        """Copies of three arrays (S, L) in one; raises ValueError where their shapes differ."""
        return cls(np.array([cpu_limit_mcpu, nice, egress_mbps], np.float32), nice_scope)

    @classmethod
    def none(cls, num_slices: int, num_lanes: int = 1, nice_scope: NiceScope = "group") -> Knobs:
        """No limit, nice 0, no shaping."""
        values = np.full((NUM_KNOBS, num_slices, num_lanes), np.inf, np.float32)
        values[NICE] = 0.0
        return cls(values, nice_scope)

    def only(self, moves: BoolArray, held: Knobs) -> Knobs:
        """The same values for knobs that move (3, S, L), and the held values for others."""
        return Knobs(np.where(moves, self.values, held.values), self.nice_scope)

    def copy(self) -> Knobs:
        """A deep copy."""
        return Knobs(self.values.copy(), self.nice_scope)

    def same_as(self, other: Knobs) -> bool:
        """Whether both say the same, bit for bit; a fraction of a microsecond for a node.

        What "unchanged" means wherever something is kept that was worked out from knobs. Whether they are one object
        says nothing but that they are the same.
        """
        if self is other:
            return True
        item, two = self.values, other.values
        return self.nice_scope == other.nice_scope and item.shape == two.shape and item.tobytes() == two.tobytes()

    def between_groups(self) -> Knobs:
        """The same in group scope: nice of process scope ranks threads inside a pod and moves no weight, so it is 0."""
        if self.nice_scope == "group":
            return self
        values = self.values.copy()
        values[NICE] = 0.0
        return Knobs(values)

    @property
    def cpu_limit_mcpu(self) -> FloatArray:
        """CFS quota in thousandths of a CPU (Kubernetes' ``limits.cpu``), (S, L); inf = none."""
        return self.values[CPU_LIMIT]

    @property
    def nice(self) -> FloatArray:
        """-20..19, whole numbers, (S, L). Its meaning is its scope."""
        return self.values[NICE]

    @property
    def egress_mbps(self) -> FloatArray:
        """Rate of the slice's egress shaper towards N6, (S, L); inf = none, 0 = shaper switched on without a rate (as
        the published experiments did): nothing is paced."""
        return self.values[EGRESS]
