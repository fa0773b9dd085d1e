"""The node: one control period of every slice and lane as a handful of array operations.

A packet's way: access path -> N3 socket buffer -> UPF thread (CPU) -> egress pacer -> shared N6 uplink. Queues are
fluid; what happens inside a control period (frame bursts, CFS throttling, run-queue waits) enters the delay by its mean
and its 99th percentile. All arrays are float32 (S, L): slices, lanes. Buffers are allocated once, because with one lane
the cost of a step is the number of NumPy calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..knobs import Knobs
from ..slices import FloatArray
from ..telemetry import Telemetry
from .cpu import WaterFill, group_weight
from .exogenous import Block, Exogenous
from .hardware import HardwareArrays

UNLIMITED = np.float32(1e9)
TINY = np.float32(1e-9)
# A 100 ms period whose mean demand is within +-1/8 of the quota is throttled or not by chance.
THROTTLE_SLOPE = np.float32(4.0)
# Waits of a run queue are about exponential: the 99th percentile is ln(100) times the mean.
EXPONENTIAL_P99 = np.float32(4.6)
MAX_RUNQUEUE_SLICES = np.float32(25.0)


class Engine:
    """State and dynamics of L nodes with S slices each.

    ``load(exogenous, ...)`` starts a run; ``apply(knobs)`` sets the knobs; ``advance()`` plays one control period and
    updates ``telemetry``. ``elapsed`` counts periods.
    """

    def __init__(self, num_slices: int, lanes: int) -> None:
        self.num_slices, self.lanes = num_slices, lanes
        shape = (num_slices, lanes)

        def array(*prefix: int) -> FloatArray:
            return np.zeros((*prefix, *shape), np.float32)

        self.telemetry = Telemetry.empty(num_slices, lanes)
        self.n3_mbit, self.pacer_lead_s, self.pacer_mbit, self.uplink_mbit = (
            array(),
            array(),
            array(),
            array(),
        )
        self.elastic_mbps, self.budget_s = array(), array()
        self.left_mbps = np.zeros(lanes, np.float32)
        self._fill = WaterFill((2, *shape))
        self._weight = np.ones((2, *shape), np.float32)
        self._weight_sum = np.empty((2, 1, lanes), np.float32)
        self._work, self._demand, self._run, self._served = array(), array(), array(), array()
        self._left, self._tmp, self._rate, self._rest = array(), array(), array(), array()
        self._delay, self._term = array(2), array(2)
        self._lane = np.empty((6, lanes), np.float32)
        self.dropped_mbit = {"n3": array(), "pacer": array(), "uplink": array()}
        self._arrived = array()

    # -- a run -------------------------------------------------------------------------------------------------

    def load(
        self,
        exogenous: Exogenous,
        hardware: HardwareArrays,
        period_s: FloatArray,
        threads: FloatArray,
        request_mcpu: FloatArray,
    ) -> None:
        """Start a run with empty queues. ``period_s`` (L,), ``threads`` and ``request_mcpu`` (S, L)."""
        self.exogenous, self.hardware, self.period_s = exogenous, hardware, period_s
        self._threads, self._request = threads, request_mcpu
        for state in (self.n3_mbit, self.pacer_lead_s, self.pacer_mbit, self.uplink_mbit, self.elastic_mbps):
            state[:] = 0
        self.left_mbps[:] = 0
        self.elapsed = 0
        self._block: Block | None = None
        self._row = 0
        hw, lanes = hardware, self.lanes
        self._inverse_period = 1.0 / period_s
        self._cores = hw.physical_cores
        self._smt_slope = (1.0 - hw.smt_yield) / np.maximum(hw.logical_cpus - hw.physical_cores, 1e-3)
        self._smt_floor = hw.smt_yield
        self._cfs_s = 1e-3 * hw.cfs_period_ms
        self._sub_period = bool((period_s < self._cfs_s).any())
        leak = np.broadcast_to(hw.weight_leak, (self.num_slices, lanes))
        self._mix = np.stack([1.0 - leak, leak]).astype(np.float32)
        self._slice_us = 1e3 * hw.sched_slice_ms
        self._burst_mean_p99 = np.asarray([0.5, 1.0], np.float32)[:, None, None]
        self._wait_mean_p99 = np.asarray([1.0, EXPONENTIAL_P99], np.float32)[:, None, None]
        self._uplink_congested = False
        self._horizon_s, self._pacer_floor_s = hw.pacer_horizon_s, -hw.pacer_burst_s
        self._packets_per_flow = hw.pacer_packets_per_flow
        self.apply(Knobs.none(self.num_slices, lanes))
        self.budget_s[:] = self._quota_s

    def apply(self, knobs: Knobs) -> None:
        """Set the knobs for the periods to come."""
        self.knobs = knobs
        self._weight[0] = group_weight(knobs, self._request)
        np.add.reduce(self._weight, axis=1, keepdims=True, out=self._weight_sum)
        quota = np.minimum(knobs.cpu_limit_mcpu * np.float32(1e-3), UNLIMITED)
        self._cap = np.minimum(quota, self._threads)
        self._slope_over_quota = THROTTLE_SLOPE / quota
        self._quota_s = quota * self._cfs_s
        off_share = np.maximum(1.0 - quota / self._threads, 0.0)
        off_us = 1e6 * self._cfs_s * off_share
        self._throttle_us = np.stack([0.5 * off_us * off_share, off_us])
        egress = knobs.egress_mbps
        self._paced = np.isfinite(egress) & (egress > 0)
        self._any_paced = bool(self._paced.any())
        if self._any_paced:
            self._egress = np.where(self._paced, egress, UNLIMITED)

    def _next_row(self) -> tuple[Block, int]:
        block = self._block
        if block is None or self._row >= len(block.uplink_mbps):
            block = self._block = self.exogenous.next_block()
            self._row = 0
            self._service_mbit = self.period_s / block.cpu_s_per_mbit
            self._want_cpu = block.cpu_s_per_mbit * self._inverse_period
            self._tx_cpu = 1e-6 * self.hardware.tx_cost_us / np.maximum(block.packet_mbit.mean(axis=1), TINY)
            self._buffer_mbit = self.hardware.n3_buffer_packets * block.packet_mbit
        row = self._row
        self._row += 1
        return block, row

    def advance(self) -> Telemetry:
        """Play one control period; returns ``telemetry`` (views, valid until the next call)."""
        block, k = self._next_row()
        self._share_cpu(block, k)
        self._serve(block, k)
        left = self._pace(block, k) if self._any_paced or self.pacer_mbit.any() else self._served
        self._send(left, block, k)
        if self.exogenous.has_elastic:
            self._adapt_elastic(block, k)
        self.elapsed += 1
        return self.telemetry

    # -- stages ------------------------------------------------------------------------------------------------

    def _share_cpu(self, block: Block, k: int) -> None:
        """CPU shares, throttling and the part of the delay that CPU scheduling causes."""
        work, demand, run, rows = self._work, self._demand, self._run, self.telemetry.slices
        kernel, speed, capacity, scratch = self._lane[:4]
        arrived = block.arrive_mbit[k]
        if self.exogenous.has_elastic:
            np.multiply(np.minimum(self.elastic_mbps, block.elastic_mbps[k]), self.period_s, out=self._arrived)
            self._arrived += arrived
            arrived = self._arrived
        np.multiply(arrived, self._inverse_period, out=rows[0])
        np.add(self.n3_mbit, arrived, out=work)
        np.multiply(work, self._want_cpu[k], out=demand)
        # Softirq work precedes all threads; the transmit part follows what left in the last period.
        np.multiply(self.left_mbps, self._tx_cpu[k], out=kernel)
        np.add(kernel, block.rx_cpu[k], out=kernel)
        if self.exogenous.has_elastic:
            kernel += (self.elastic_mbps * block.rx_cpu_s_per_mbit[k]).sum(0)
        np.minimum(demand, self._cap, out=run)
        np.add.reduce(run, axis=0, out=scratch)
        scratch += kernel
        scratch -= self._cores
        np.maximum(scratch, 0.0, out=scratch)
        scratch *= self._smt_slope
        np.subtract(1.0, scratch, out=speed)
        np.maximum(speed, self._smt_floor, out=speed)
        speed *= block.cpu_factor[k]
        np.divide(kernel, speed, out=kernel)
        np.subtract(self.hardware.logical_cpus, kernel, out=capacity)
        np.maximum(capacity, 0.05, out=capacity)
        demand /= speed
        np.minimum(demand, self._cap, out=run)
        share = self._fill.fill(capacity, run, self._weight, self._weight_sum)
        share *= self._mix
        got = self._rate
        np.add(share[0], share[1], out=got)
        # Node idle time, charged CPU, throttling, run-queue wait.
        np.add.reduce(got, axis=0, out=scratch)
        scratch += kernel
        scratch /= self.hardware.logical_cpus
        np.subtract(1.0, scratch, out=scratch)
        np.maximum(scratch, 0.0, out=self.telemetry.node[0])
        np.multiply(got, 1000.0, out=rows[5])
        throttled = rows[6]
        np.multiply(demand, self._slope_over_quota, out=throttled)
        throttled -= THROTTLE_SLOPE - 0.5
        np.maximum(throttled, 0.0, out=throttled)
        np.minimum(throttled, 1.0, out=throttled)
        wait = rows[7]
        np.maximum(got, TINY, out=self._tmp)
        np.divide(run, self._tmp, out=wait)
        wait -= 1.0
        np.minimum(wait, MAX_RUNQUEUE_SLICES, out=wait)
        np.maximum(wait, 0.0, out=wait)
        wait *= self._slice_us
        delay, term = self._delay, self._term
        np.multiply(self._throttle_us, throttled, out=delay)
        np.multiply(self._wait_mean_p99, wait, out=term)
        delay += term
        np.multiply(block.burst_us[k], run, out=self._tmp)
        np.multiply(self._burst_mean_p99, self._tmp, out=term)
        delay += term
        got *= speed
        got *= self._service_mbit[k]

    def _serve(self, block: Block, k: int) -> None:
        """N3 queue: what the UPF takes in this period, what waits, what its full socket buffer drops."""
        work, served, rest, queue = self._work, self._served, self._rest, self.n3_mbit
        rate = self._rate
        if self._sub_period:
            np.minimum(work, self._within_budget(rate), out=served)
        else:
            np.minimum(work, rate, out=served)
        np.subtract(work, served, out=rest)
        term, delay = self._term, self._delay
        np.minimum(rest, self._buffer_mbit[k], out=rest)
        np.subtract(work, served, out=self.dropped_mbit["n3"])
        self.dropped_mbit["n3"] -= rest
        # Mean and larger end of the backlog over the rate it drains at.
        np.add(queue, rest, out=term[0])
        term[0] *= 0.5
        np.maximum(queue, rest, out=term[1])
        np.maximum(rate, TINY, out=rate)
        np.divide(self.period_s, rate, out=rate)
        rate *= 1e6
        term *= rate
        delay += term
        queue[:] = rest

    def _within_budget(self, rate: FloatArray) -> FloatArray:
        """What can be served in a period shorter than the CFS period: at full speed until the quota is used up.

        Where the control period is at least the CFS period the long-run rate holds. Budgets refill at multiples of the
        CFS period, on all slices at once.
        """
        start = self.elapsed * self.period_s
        phase = np.mod(start, self._cfs_s)
        until_refill = self._cfs_s - phase
        before = np.minimum(self.period_s, until_refill)
        after = np.maximum(self.period_s - until_refill, 0.0)
        bound = self._demand > self._cap
        share = np.where(
            bound & (self._quota_s < self._threads * self._cfs_s),
            self._threads,
            self.telemetry.slices[5] * 1e-3,
        )
        per_cpu_s = rate / np.maximum(self.telemetry.slices[5] * 1e-3 * self.period_s, TINY)
        wanted = np.minimum(share * self.period_s, self._work / np.maximum(per_cpu_s, TINY))
        use_before = np.minimum(np.minimum(share * before, wanted), self.budget_s)
        use_after = np.minimum(np.minimum(share * after, wanted - use_before), self._quota_s)
        refilled = until_refill <= self.period_s
        short = self.period_s < self._cfs_s
        self.budget_s[:] = np.where(
            refilled, self._quota_s - use_after, np.minimum(self.budget_s, self._quota_s) - use_before
        )
        np.maximum(self.budget_s, 0.0, out=self.budget_s)
        return np.asarray(np.where(short, (use_before + use_after) * per_cpu_s, rate), np.float32)

    def _pace(self, block: Block, k: int) -> FloatArray:
        """Egress pacer: departures are scheduled at the configured rate; beyond the horizon packets are refused.

        The schedule advances for every packet that is admitted, also for those the queue behind it then drops because a
        flow may hold only so many packets: with the schedule at its horizon T a flow limit of n packets lets through
        n / T. That is why a rate below what the UPF delivers collapses instead of shaping (Linux ``sch_fq`` ``flow_limit``
        100; Cilium ``bpf/lib/edt.h``, 2 s drop horizon).
        """
        lead, stored, rate, served = self.pacer_lead_s, self.pacer_mbit, self._egress_now(), self._served
        lead += served / rate
        lead -= self.period_s
        np.maximum(lead, self._pacer_floor_s, out=lead)
        over = np.maximum(lead - self._horizon_s, 0.0)
        lead -= over
        refused = np.where(self._paced, np.minimum(over * rate, served), 0.0)
        ahead = np.maximum(lead, 0.0)
        room = self._packets_per_flow * block.flows[k] * block.packet_mbit[k]
        keep = np.where(self._paced, np.minimum(ahead * rate, room), 0.0)
        available = stored + served - refused
        np.minimum(keep, available, out=keep)
        passed = np.minimum(available - keep, room * self.period_s / np.maximum(ahead, TINY))
        left = np.where(self._paced, passed, available)
        self.dropped_mbit["pacer"][:] = served + stored - left - keep
        stored[:] = keep
        self._left[:] = left
        lead *= self._paced
        self._delay += 1e6 * ahead * self._paced
        return self._left

    def _egress_now(self) -> FloatArray:
        if not self._any_paced:
            self._egress = np.full_like(self.n3_mbit, UNLIMITED)
        return self._egress

    def _send(self, left: FloatArray, block: Block, k: int) -> None:
        """Shared uplink: one FIFO for all slices; then the rest of the telemetry."""
        rows, node = self.telemetry.slices, self.telemetry.node
        total, capacity = self._lane[4:]
        np.multiply(block.uplink_mbps[k], self.period_s, out=capacity)
        np.add.reduce(left, axis=0, out=total)
        delay = self._delay
        self.dropped_mbit["uplink"][:] = 0
        if self._uplink_congested or bool((total > capacity).any()):
            queued = self.uplink_mbit
            waiting = queued.sum(0)
            queued += left
            backlog = waiting + total
            sent = queued * np.minimum(capacity / np.maximum(backlog, TINY), 1.0)
            queued -= sent
            room = 1e-3 * self.hardware.uplink_buffer_ms * block.uplink_mbps[k]
            keep = queued * np.minimum(room / np.maximum(queued.sum(0), TINY), 1.0)
            np.subtract(queued, keep, out=self.dropped_mbit["uplink"])
            queued[:] = keep
            after = queued.sum(0)
            self._uplink_congested = bool((after > 0).any())
            seconds = 1e6 / np.maximum(block.uplink_mbps[k], TINY)
            delay[0] += 0.5 * (waiting + after) * seconds
            delay[1] += np.maximum(waiting, after) * seconds
            left = sent
            np.minimum(backlog, capacity, out=total)
        np.divide(total, capacity, out=node[1])
        np.multiply(total, self._inverse_period, out=self.left_mbps)
        np.multiply(left, self._inverse_period, out=rows[1])
        # Some packets' own processing time is always there.
        np.multiply(block.packet_mbit[k], block.cpu_s_per_mbit[k], out=self._tmp)
        self._tmp *= 1e6
        delay += self._tmp
        rows[2:4] = delay
        np.maximum(rows[0], TINY, out=self._tmp)
        loss = rows[4]
        np.divide(rows[1], self._tmp, out=loss)
        np.subtract(1.0, loss, out=loss)
        np.maximum(loss, 0.0, out=loss)
        active = block.active[k]
        self.telemetry.valid[:] = active

    def _adapt_elastic(self, block: Block, k: int) -> None:
        """TCP-like sources: back off by what was lost, else probe upwards, on the time scale of a round trip."""
        rows = self.telemetry.slices
        gain = 1.0 - np.exp(-self.period_s / np.float32(0.2))
        want = np.where(rows[4] > 0.01, 0.9 * rows[1], 1.3 * self.elastic_mbps + 0.5)  # noqa: PLR2004
        self.elastic_mbps += gain * (want - self.elastic_mbps)
        np.minimum(self.elastic_mbps, block.elastic_mbps[k], out=self.elastic_mbps)

    # -- inspection --------------------------------------------------------------------------------------------

    @property
    def queued_mbit(self) -> FloatArray:
        """Traffic inside the node, (S, L)."""
        return self.n3_mbit + self.pacer_mbit + self.uplink_mbit

    def snapshot(self) -> dict[str, Any]:
        """Copies of the dynamic state; `restore` continues from it (an oracle tries several futures)."""
        names = (
            "n3_mbit",
            "pacer_lead_s",
            "pacer_mbit",
            "uplink_mbit",
            "elastic_mbps",
            "budget_s",
            "left_mbps",
        )
        state = {name: getattr(self, name).copy() for name in names}
        return state | {"congested": self._uplink_congested, "elapsed": self.elapsed}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `snapshot`, with the next block that ``exogenous`` gives and the knobs that are set now."""
        for name, value in state.items():
            if isinstance(value, np.ndarray):
                getattr(self, name)[:] = value
        self._uplink_congested = state["congested"]
        self.elapsed = state["elapsed"]
        self._block = None

    @property
    def request_mcpu(self) -> FloatArray:
        """Kubernetes CPU requests of the pods, (S, L)."""
        return self._request

    def current_block(self) -> tuple[Block | None, int]:
        """The block in use and how many of its steps have been played (None before the first step)."""
        return self._block, self._row
