"""Telemetry: one measurement of every slice and of the node over the last control period."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arrays import FloatArray

SLICE_FIELDS = (
    "offered_mbps",
    "carried_mbps",
    "delay_p50_us",
    "delay_p99_us",
    "loss_ratio",
    "cpu_use_mcpu",
    "throttled_ratio",
    "runqueue_delay_us",
)
NODE_FIELDS = ("cpu_idle_ratio", "uplink_use_ratio")


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Per-slice and per-node figures of one control period, for L lanes at once (a live node is one lane).

    Attributes:
        slices: float32 (F, S, L), rows in the order of `SLICE_FIELDS`. Rates at N3 (offered) and N6 (carried); delays
            from N3 ingress to N6 of the packets that left; loss is 1 - carried/offered, floored at 0; CPU use is what
            the slice's cgroup consumed; throttled_ratio is the fraction of CFS periods in which its quota ran out.
        node: float32 (N, L), rows in the order of `NODE_FIELDS`.
        age_s: float32 (L,), time since the measurement ended.
        valid: bool (S, L), False where a slice is absent or could not be measured (its figures are then zero).

    The arrays may be views into a backend's buffers: they hold until the next ``observe``.
    """

    slices: FloatArray
    node: FloatArray
    age_s: FloatArray
    valid: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

    @classmethod
    def empty(cls, num_slices: int, num_lanes: int = 1) -> Telemetry:
        """All zeros and valid, freshly allocated."""
        return cls(
            np.zeros((len(SLICE_FIELDS), num_slices, num_lanes), np.float32),
            np.zeros((len(NODE_FIELDS), num_lanes), np.float32),
            np.zeros(num_lanes, np.float32),
            np.ones((num_slices, num_lanes), np.bool_),
        )

    def copy(self) -> Telemetry:
        """A deep copy that outlives the next ``observe``."""
        return Telemetry(self.slices.copy(), self.node.copy(), self.age_s.copy(), self.valid.copy())

    @property
    def offered_mbps(self) -> FloatArray:
        """Rate that reached N3, (S, L)."""
        return self.slices[0]

    @property
    def carried_mbps(self) -> FloatArray:
        """Rate that left at N6, (S, L)."""
        return self.slices[1]

    @property
    def delay_p50_us(self) -> FloatArray:
        """Median N3-to-N6 delay, (S, L)."""
        return self.slices[2]

    @property
    def delay_p99_us(self) -> FloatArray:
        """99th percentile of the N3-to-N6 delay, at least the age of the oldest packet inside, (S, L)."""
        return self.slices[3]

    @property
    def loss_ratio(self) -> FloatArray:
        """Share of the offered bits that did not leave, (S, L), 0..1."""
        return self.slices[4]

    @property
    def cpu_use_mcpu(self) -> FloatArray:
        """CPU time charged to the slice's cgroup, (S, L)."""
        return self.slices[5]

    @property
    def throttled_ratio(self) -> FloatArray:
        """nr_throttled / nr_periods of cpu.stat over the period, (S, L), 0..1."""
        return self.slices[6]

    @property
    def runqueue_delay_us(self) -> FloatArray:
        """Mean wait for a CPU of a thread that could run, (S, L)."""
        return self.slices[7]

    @property
    def cpu_idle_ratio(self) -> FloatArray:
        """Idle share of the node's logical CPUs, (L,)."""
        return self.node[0]

    @property
    def uplink_use_ratio(self) -> FloatArray:
        """Carried over capacity on the shared N6 uplink, (L,)."""
        return self.node[1]
