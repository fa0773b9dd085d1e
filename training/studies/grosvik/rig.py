"""The bottleneck in the kernel: a veth pair whose sending end has the policy's qdiscs and programs.

HTB is the link where classes share it, TBF where it is a single FIFO. Policing and early drop are a BPF program in
front (``controller/telemetry/bpf/limit.bpf.c``), for kernels without act_police and sch_red.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import struct
import time
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError
from slicepilot.controller.actuators.uplink import ClassfulUplink, SliceClass, priority_of
from slicepilot.controller.system.bpf.libbpf import BpfObject
from slicepilot.controller.system.net import tc
from slicepilot.controller.system.net.qdisc import RootQdisc
from slicepilot.controller.system.net.rtnetlink import RouteSocket, attribute
from slicepilot.controller.telemetry.layout import FOLDER
from slicepilot.env.simulator.scenario import UplinkClass

from . import packets
from .policies import BURST_MS, FRAME_BYTES, HALF_MBPS, LINK_MBPS, QUEUE_MS, Flow, Policy, share_of

LIMIT = struct.Struct("=7Q")  # struct limit of limit.bpf.c
FIRST_CLASS = 2
LEAST_QUEUE = 4
TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_TBF_BURST = 1, 4, 6
TBF_OPT = struct.Struct("=BBHhHIBBHhHIIII")  # tc_tbf_qopt: rate and peak rate (tc_ratespec), limit, buffer, mtu
LATE_MS = 2.0
START_S, END_S = 0.3, 0.4
"""From the order to the first packet, and from the last to the end: queues have drained by then."""


@dataclass(frozen=True)
class Run:
    """Packets of a run.

    Attributes:
        flows, sent_ns: of all packets that were sent, (N,).
        received_ns: when they came, 0 for those that did not.
        started_ns: of the run.
        late_ratio: share of packets that were sent more than `LATE_MS` after they were due.
    """

    flows: npt.NDArray[np.int64]
    sent_ns: npt.NDArray[np.int64]
    received_ns: npt.NDArray[np.int64]
    started_ns: int
    late_ratio: float = 0.0


class Rig:
    """Two namespaces and the link between; to be used as a context.

    Raises:
        ConfigError: not root, or the kernel lacks something.
    """

    def __enter__(self) -> Rig:
        with contextlib.ExitStack() as undo:
            spawn = multiprocessing.get_context("spawn")
            self._sender, self._receiver = (
                undo.enter_context(ProcessPoolExecutor(1, mp_context=spawn)) for _ in range(2)
            )
            try:
                sender, receiver = (each.submit(packets.isolate).result() for each in (self._sender, self._receiver))
            except OSError as error:
                raise ConfigError(
                    f"in = 'testbed': a network namespace cannot be made ({error}); needs root"
                ) from error
            self._sender.submit(packets.connect, receiver).result()
            self._receiver.submit(packets.accept).result()
            self.netns = Path(f"/proc/{sender}/ns/net")
            self._route = RouteSocket(self.netns)
            undo.callback(self._route.close)
            self._limits = undo.enter_context(BpfObject(FOLDER / "limit.bpf.o"))
            index = self._route.index_of(packets.DEVICE)
            tc.add_clsact(self._route, index)
            program = self._limits.program("slicepilot_limit").fd
            tc.add_filter(
                self._route, index, "egress", priority=1, handle=1, program=program, name="slicepilot/limit", classid=0
            )
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def play(self, policy: Policy, flows: tuple[Flow, ...], pairs: int, seconds: float, control: Any = None) -> Run:
        """Send the flows, evenly from so many classes of each group, through the policy.

        ``control`` is called with the uplink every so often while packets are sent (`Control`).
        """
        with contextlib.ExitStack() as undo:
            uplink = self._install(policy, pairs, undo)
            numbers = range(FIRST_CLASS, FIRST_CLASS + 2 * pairs)
            due_s, of = schedule(flows, pairs, seconds)
            started_ns = time.time_ns() + round(1e9 * START_S)
            until_ns = started_ns + round(1e9 * (seconds + END_S))
            receiving: Future[Any] = self._receiver.submit(packets.receive, until_ns)
            due_ns = started_ns + np.rint(1e9 * due_s).astype(np.int64)
            priorities = [priority_of(number) for number in numbers]
            sending = self._sender.submit(packets.send, due_ns, of, priorities, FRAME_BYTES)
            if control is not None:
                control(uplink, started_ns, seconds)
            sent_ns = sending.result()
            late = float((sent_ns - due_ns > 1e6 * LATE_MS).mean())
            return replace(_matched(of, sent_ns, receiving.result(), started_ns), late_ratio=late)

    def _install(self, policy: Policy, pairs: int, undo: contextlib.ExitStack) -> ClassfulUplink | None:
        """Put the policy's qdiscs and limits there."""
        early_or_police = policy.limit in ("red", "police")
        for at in range(pairs):
            self._limit(FIRST_CLASS + pairs + at, policy if early_or_police else None, pairs)
        if policy.classes is None and policy.limit in (None, "police"):
            qdisc = RootQdisc(self._route, packets.DEVICE)
            qdisc.put("tbf", _tbf_options(LINK_MBPS, QUEUE_MS))
            undo.callback(qdisc.remove)
            return None
        uplink = ClassfulUplink(packets.DEVICE, self.netns, LINK_MBPS, classes_of(policy, pairs))
        undo.callback(uplink.close)
        undo.callback(uplink.restore)
        return uplink

    def _limit(self, number: int, policy: Policy | None, pairs: int) -> None:
        if policy is None:
            value = bytes(LIMIT.size)
        else:
            rate = HALF_MBPS / pairs * 125_000.0
            packet_ns = 1e9 * FRAME_BYTES / rate
            depth_ns = 1e6 * BURST_MS
            value = LIMIT.pack(round(rate), round(depth_ns), round(packet_ns) * (policy.limit == "red"), 0, 0, 0, 0)
        self._limits.map("limits").update(struct.pack("=I", number), value)


def classes_of(policy: Policy, pairs: int) -> list[SliceClass]:
    """A policy's classes on the link: those of critical, then those of best effort."""
    shaped = UplinkClass(HALF_MBPS, LINK_MBPS), UplinkClass(HALF_MBPS, HALF_MBPS)
    result = []
    for kind, each in enumerate(policy.classes or shaped):
        share = share_of(each, pairs)
        queue = math.ceil(1e3 * HALF_MBPS * policy.queue_ms / (8 * FRAME_BYTES) / pairs)
        first = SliceClass(
            FIRST_CLASS + kind * pairs,
            share.guarantee_mbps,
            share.ceiling_mbps or LINK_MBPS,
            each.priority,
            max(queue, LEAST_QUEUE),
            quantum_bytes=FRAME_BYTES,
            burst_ms=BURST_MS if kind else policy.burst_ms,
        )
        result += [replace(first, number=first.number + at) for at in range(pairs)]
    return result


def schedule(flows: tuple[Flow, ...], pairs: int, seconds: float) -> tuple[Any, Any]:
    """When which class sends: times in s and classes, (N,), critical first. Classes of a group take turns."""
    times, owners = [], []
    for number, flow in enumerate(flows):
        every_s = FRAME_BYTES * 8e-6 / flow.mbps
        parts = [np.arange(begin, end, every_s) for begin, end in flow.spans or ((0.0, seconds),)]
        due = np.concatenate([part[np.arange(len(part)) // flow.burst * flow.burst] for part in parts])
        due += every_s * (0.37 * number % 1.0)
        times.append(due)
        owners.append(flow.kind * pairs + np.arange(len(due)) % pairs)
    due, of = np.concatenate(times), np.concatenate(owners)
    order = np.argsort(due, kind="stable")
    return due[order], of[order]


def _matched(flows: Any, sent_ns: Any, records: Any, started_ns: int) -> Run:
    """Packets that were sent beside those that came, by flow and sequence number."""
    received = np.zeros(len(flows), np.int64)
    for flow in np.unique(flows):
        positions = np.flatnonzero(flows == flow)
        own = records[records["flow"] == flow]
        received[positions[own["sequence"]]] = own["received_ns"].astype(np.int64)
    return Run(flows, sent_ns, received, started_ns)


def _tbf_options(rate_mbps: float, queue_ms: float) -> bytes:
    """A token bucket with a FIFO of so much time (tc-tbf(8), linux/pkt_sched.h)."""
    rate = round(rate_mbps * 125_000.0)
    burst = round(max(rate * 1e-3 * BURST_MS, 2 * FRAME_BYTES))
    spec = (0, 1, 0, 0, 0, rate)
    parms = TBF_OPT.pack(*spec, *(0,) * 6, round(rate * 1e-3 * queue_ms), 0, 0)
    options = attribute(TCA_TBF_PARMS, parms) + attribute(TCA_TBF_RATE64, struct.pack("=Q", rate))
    return options + attribute(TCA_TBF_BURST, struct.pack("=I", burst))
