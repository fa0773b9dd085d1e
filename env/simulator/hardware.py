"""The node's physical parameters: what calibration fits and domain randomisation draws around."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field

from slicepilot.configs import load
from slicepilot.env.arrays import BoolArray, FloatArray
from slicepilot.env.backend import PACERS, NodeTraits

# What the compiled step reads, axis 0 of (H, L).
KERNEL_ROWS = (
    "logical_cpus",
    "physical_cores",
    "smt_yield",
    "tx_cost_us",
    "system_cpus",
    "wake_cost_ratio",
    "cfs_period_s",
    "sched_slice_us",
    "wake_wait_us",
    "edge_threads",
    "edge_request_mcpu",
    "n3_buffer_packets",
    "pacer_horizon_s",
    "pacer_burst_s",
    "pacer_packets_per_flow",
    "pacer_queue_packets",
    "uplink_buffer_s",
)
UNLIMITED = np.float32(1e9)
UPLINK_CLASS = ("guarantee_mbps", "ceiling_mbps", "priority")
"""Rows of the classes of a shared uplink, (3, S, L)."""
UPLINK_PRIORITIES = 8
"""Number of priorities of HTB's classes: TC_HTB_NUMPRIO in the kernel's net/sched/sch_htb.c."""

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Ratio = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Hardware:
    """One edge node and the path to it. Costs are CPU time on an otherwise idle core.

    CPU
        logical_cpus, physical_cores: SMT threads and cores.
        smt_yield: speed of a thread while its sibling is busy, relative to having the core alone.
        upf_cost_us: per packet, in the UPF's own threads; charged to its cgroup and bound by its quota.
        rx_cost_us: per packet that arrives at N3, in softirq context; charged to nobody, before all else.
        tx_cost_us: per packet that leaves the node at N6 (qdisc, driver, completion); charged to nobody.
        system_cpus: CPUs that the rest of the system takes, whatever the slices do.
        wake_cost_ratio: how much more a packet costs a thread that sleeps nearly always: it wakes for every few
            packets, while a thread that does not keep up takes one after the other.
        cfs_period_ms: CFS bandwidth period (kernel: Documentation/scheduler/sched-bwc.rst, default 100 ms).
        sched_slice_ms: how long a competing task runs before the scheduler switches.
        wake_wait_ms: mean wait of a thread that wakes while all CPUs are busy with threads of much larger weight,
            however little CPU it needs. A scheduler that does not preempt the running task makes it wait up to a tick.
        edge_threads, edge_request_mcpu: other work on the node, threads that never sleep in a group of their own, and
            its Kubernetes CPU request.
        placement_cv, placement_tau_s: log-normal factor of a slice's weight, for chance in placing threads: the
            scheduler moves them between CPUs rarely, so that of five threads on four CPUs two share a CPU for a while.
    Buffers and egress
        n3_buffer_packets: what a UPF's N3 socket holds.
        egress_mode: ``edt`` (Cilium's bandwidth manager: earliest departure time with a drop horizon, and fq's
            per-flow packet limit behind it), ``tbf`` (token bucket with a queue bounded in time), ``htb`` (token bucket
            with a queue bounded in packets, `controller.actuators.egress`), ``police`` (token bucket without a queue:
            what exceeds is dropped) or ``red`` (token bucket with early drop: random early detection whose thresholds
            are so low that its mean queue is ``red_queue_packets``).
        edt_horizon_s, fq_flow_limit_packets: Cilium's and fq's defaults.
        tbf_burst_ms, tbf_latency_ms: bucket depth and queue bound in time at the configured rate.
        htb_burst_ms, htb_queue_packets: bucket depth in time at the configured rate, and what may wait.
        uplink_mbps, uplink_buffer_ms: the shared N6 link and its queue; with classes (`Scenario.uplink_classes`) each
            class has a queue of its own, as long in time at the rate at which it is served.
    Path outside the node (seen by a UE, not between N3 and N6)
        access_mbps: what the radio access path of one slice carries; access_buffer_ms: its queue when full.
        ingress_mbps, ingress_buffer_ms: the link over which all slices' packets come to the node, and the queue before
            it when full.
        round_trip_ms: the rest of the round trip, a median; round_trip_cv: its spread, log-normal.
        server_loss_ratio: share of packets lost between the node and the server while the uplink is full, in proportion
            to its use: bursts overflow queues that the mean rate would pass.
    Variability (log-normal, first-order autoregressive)
        access_cv, cpu_cv: coefficients of variation of the access path's rate and of the per-packet cost;
        access_tau_s, cpu_tau_s: their correlation times.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    logical_cpus: Positive = 4.0
    physical_cores: Positive = 2.0
    smt_yield: Annotated[float, Field(gt=0, le=1)] = 0.7
    upf_cost_us: Positive = 50.0
    rx_cost_us: NonNegative = 5.0
    tx_cost_us: NonNegative = 5.0
    system_cpus: NonNegative = 0.0
    wake_cost_ratio: NonNegative = 0.0
    cfs_period_ms: Positive = 100.0
    sched_slice_ms: Positive = 3.0
    wake_wait_ms: NonNegative = 0.0
    edge_threads: NonNegative = 0.0
    edge_request_mcpu: NonNegative = 0.0
    n3_buffer_packets: Positive = 2000.0
    egress_mode: Literal["edt", "tbf", "htb", "police", "red"] = "edt"
    edt_horizon_s: Positive = 2.0
    fq_flow_limit_packets: Positive = 100.0
    tbf_burst_ms: Positive = 10.0
    tbf_latency_ms: Positive = 50.0
    htb_burst_ms: Positive = 1.0
    htb_queue_packets: Positive = 200.0
    red_queue_packets: Positive = 1.0
    uplink_mbps: Positive = 1000.0
    uplink_buffer_ms: Positive = 10.0
    ingress_mbps: Positive = 100_000.0
    ingress_buffer_ms: NonNegative = 0.0
    access_mbps: Positive = 1000.0
    access_buffer_ms: NonNegative = 0.0
    round_trip_ms: NonNegative = 0.0
    round_trip_cv: NonNegative = 0.0
    server_loss_ratio: Ratio = 0.0
    access_cv: NonNegative = 0.0
    access_tau_s: Positive = 10.0
    cpu_cv: NonNegative = 0.0
    cpu_tau_s: Positive = 10.0
    placement_cv: NonNegative = 0.0
    placement_tau_s: Positive = 1.0

    @classmethod
    def from_yaml(cls, name_or_path: str) -> Hardware:
        """Parameters of ``configs/hardware/NAME.yaml`` or a user's file."""
        return load("hardware", name_or_path, HardwareFile).hardware


@dataclass(frozen=True)
class HardwareFile:
    """``configs/hardware/NAME.yaml``: parameters with where they come from and, if fitted, how well.

    ``assumed`` names parameters that the measurement did not determine; they are from the file ``assumed_from``.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    source: str
    hardware: Hardware
    fit: dict[str, float] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    assumed_from: str | None = None


class HardwareArrays:
    """`Hardware`'s numbers for L lanes: one float32 (L,) attribute per numeric field, ``is_edt`` and ``is_htb``.

    A policer is a token bucket without a queue, early drop a token bucket with a queue of ``red_queue_packets``.

    Args:
        hardware: the node of all lanes.
        lanes: L.
        uplink_classes: float32 (3, S, L), rows in the order of `UPLINK_CLASS`; None: the uplink is one FIFO.
    """

    uplink_classes: FloatArray

    if TYPE_CHECKING:  # the fields of `Hardware`

        def __getattr__(self, name: str) -> FloatArray: ...

        def __setattr__(self, name: str, value: FloatArray | BoolArray) -> None: ...

    def __init__(self, hardware: Hardware, lanes: int, uplink_classes: FloatArray | None = None) -> None:
        for spec in fields(hardware):
            value = getattr(hardware, spec.name)
            if not isinstance(value, str):
                setattr(self, spec.name, np.full(lanes, value, np.float32))
        self.is_edt = np.full(lanes, hardware.egress_mode == "edt")
        self.is_htb = np.full(lanes, hardware.egress_mode in ("htb", "red"))
        if hardware.egress_mode == "police":
            self.tbf_latency_ms = np.zeros(lanes, np.float32)
        if hardware.egress_mode == "red":
            self.htb_queue_packets = self.red_queue_packets
        none = np.zeros((len(UPLINK_CLASS), 0, lanes), np.float32)
        # In one memory order: the kernels would be compiled again for another, which takes half a minute.
        self.uplink_classes = none if uplink_classes is None else np.ascontiguousarray(uplink_classes)

    def traits(self, request_mcpu: FloatArray) -> NodeTraits:
        """The traits that a controller knows, with the pods' CPU requests (S, L)."""
        kinds = [PACERS.index(kind) for kind in ("edt", "htb", "tbf")]
        return NodeTraits(
            pacer=np.select([self.is_edt, self.is_htb], kinds[:2], kinds[2]).astype(np.float32),
            cfs_period_s=np.float32(1e-3) * self.cfs_period_ms,
            n3_buffer_packets=self.n3_buffer_packets,
            pacer_ms=np.where(self.is_edt | self.is_htb, np.float32(0.0), self.tbf_latency_ms).astype(np.float32),
            pacer_packets=np.where(self.is_htb, self.htb_queue_packets, np.float32(0.0)).astype(np.float32),
            physical_cores=self.physical_cores,
            request_mcpu=request_mcpu,
            uplink_classes=np.full(self.uplink_mbps.shape, self.uplink_classes.shape[1] > 0),
        )

    def kernel_rows(self) -> FloatArray:
        """The rows that the kernel reads, (17, L), in the order of `KERNEL_ROWS`.

        All egress modes are one virtual schedule there: EDT has no burst, a horizon of seconds and fq's per-flow packet
        limit behind it; token buckets have a burst and a queue, bounded to tens of milliseconds or to some packets.
        """
        edt, htb = self.is_edt, self.is_htb
        derived = {
            "cfs_period_s": 1e-3 * self.cfs_period_ms,
            "sched_slice_us": 1e3 * self.sched_slice_ms,
            "wake_wait_us": 1e3 * self.wake_wait_ms,
            "pacer_horizon_s": np.select([edt, htb], [self.edt_horizon_s, 0.0], 1e-3 * self.tbf_latency_ms),
            "pacer_burst_s": 1e-3 * np.select([edt, htb], [0.0, self.htb_burst_ms], self.tbf_burst_ms),
            "pacer_queue_packets": np.where(htb, self.htb_queue_packets, 0.0),
            "pacer_packets_per_flow": np.where(edt, self.fq_flow_limit_packets, UNLIMITED),
            "uplink_buffer_s": 1e-3 * self.uplink_buffer_ms,
        }
        rows = [derived[name] if name in derived else getattr(self, name) for name in KERNEL_ROWS]
        return np.asarray(rows, np.float32)
