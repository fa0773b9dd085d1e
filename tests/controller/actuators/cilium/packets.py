"""Packets through the model: sent from the pod, stamped by its programs, kept until their time by who receives them.

In place of sch_fq, which this kernel does not have, a process holds each packet until the time of departure that the
program has given it. So who is dropped and who leaves when is decided by the same arithmetic, on real packets of the
kernel; what fq adds to that (its own limits of 10,000 packets and 100 a flow, its timer) is not there.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from slicepilot.controller.system.net.namespaces import inside

from .machine import FAR, Datapath

PORT = 7000
SO_NO_CHECK, UDP_SEGMENT = 11, 103
HEADERS = 14 + 20 + 8
PAYLOAD = struct.Struct("=QQ")  # time of departure, which the program writes; when it was sent
SIZE = 1000 - HEADERS


@dataclass
class Flow:
    """What became of what was sent.

    Attributes:
        sent: packets.
        waits_ms: of those that left, from when they were sent to their time of departure.
        departures_s: CLOCK_MONOTONIC; late_ms: by how much they were held longer than that.
        sent_s: when those were sent.
    """

    sent: int = 0
    waits_ms: list[float] = field(default_factory=list)
    departures_s: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    sent_s: list[float] = field(default_factory=list)

    @property
    def loss(self) -> float:
        """Share of packets that did not leave."""
        return 1 - len(self.waits_ms) / self.sent

    def rate_mbps(self, after_s: float = 0.5) -> float:
        """On the wire, by times of departure, without the beginning."""
        times = np.sort(self.departures_s)
        times = times[times >= times[0] + after_s]
        return float(8e-6 * (SIZE + HEADERS) * (len(times) - 1) / (times[-1] - times[0]))

    def wait_ms(self, quantile: float, after_s: float = 0.0) -> float:
        """Of packets sent so long after the first."""
        waits = np.asarray(self.waits_ms)[np.asarray(self.sent_s) >= self.sent_s[0] + after_s]
        return float(np.quantile(waits, quantile))


def send(
    path: Datapath, offered_mbps: float, seconds: float, meanwhile: Callable[[float], object] | None = None
) -> Flow:
    """So much for so long, in packets of 1000 bytes; ``meanwhile`` is called every millisecond with the seconds since
    the start."""
    flow, ended = Flow(), threading.Event()
    receiver = inside(path.far.netns, lambda: _socket(receive=True))
    sender = inside(path.pod.netns, _socket)
    worker = threading.Thread(target=_hold, args=(receiver, flow, ended), daemon=True)
    worker.start()
    gap_s = 8e-6 * (SIZE + HEADERS) / offered_mbps
    start = due = time.monotonic()
    while (now := time.monotonic()) < start + seconds:
        while due <= now:
            sender.sendto(PAYLOAD.pack(0, time.monotonic_ns()) + bytes(SIZE - PAYLOAD.size), (FAR, PORT))
            flow.sent += 1
            due += gap_s
        if meanwhile is not None:
            meanwhile(now - start)
        time.sleep(0.001)
    ended.set()
    worker.join()
    sender.close()
    receiver.close()
    return flow


def send_segments(path: Datapath, every_s: float, burst: int, seconds: float) -> tuple[int, int]:
    """Segments of 60,000 bytes, several at once; how many packets were sent and how many arrived."""
    receiver = inside(path.far.netns, lambda: _socket(receive=True))
    sender = inside(path.pod.netns, lambda: _socket(checked=True))
    sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1000)
    receiver.setblocking(False)
    sent = arrived = 0
    start = due = time.monotonic()
    while (now := time.monotonic()) < start + seconds:
        if due <= now:
            for _ in range(burst):
                sender.sendto(bytes(60_000), (FAR, PORT))
                sent += 60
            due += every_s
        arrived += _drain(receiver)
        time.sleep(0.001)
    time.sleep(0.1)
    arrived += _drain(receiver)
    sender.close()
    receiver.close()
    return sent, arrived


def _drain(receiver: socket.socket) -> int:
    count = 0
    while True:
        try:
            receiver.recv(2048)
        except BlockingIOError:
            return count
        count += 1


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Before what else the machine does: a sender that waits for a CPU offers less than it says."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _socket(receive: bool = False, checked: bool = False) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if not checked:  # what is written into a packet on its way is in no checksum
        made.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        made.setsockopt(socket.SOL_SOCKET, option, 4 << 20)
    if receive:
        made.bind((FAR, PORT))
        made.settimeout(0.002)
    return made


def _hold(receiver: socket.socket, flow: Flow, ended: threading.Event) -> None:
    """Keep each packet until its time."""
    held: list[tuple[int, int]] = []
    while not ended.is_set() or held:
        try:
            departure, sent = PAYLOAD.unpack_from(receiver.recv(2048))
            heapq.heappush(held, (departure or time.monotonic_ns(), sent))
        except TimeoutError:
            pass
        now = time.monotonic_ns()
        while held and held[0][0] <= now:
            departure, sent = heapq.heappop(held)
            flow.waits_ms.append(max(departure - sent, 0) / 1e6)
            flow.departures_s.append(departure / 1e9)
            flow.late_ms.append((now - departure) / 1e6)
            flow.sent_s.append(sent / 1e9)
        if ended.is_set() and held:
            time.sleep(min(0.005, max(held[0][0] - now, 0) / 1e9))


def first_after(flow: Flow, moment_s: float) -> float:
    """How long after a moment (CLOCK_MONOTONIC) the first packet that was sent after it left; inf for none."""
    left = [departure for departure, sent in zip(flow.departures_s, flow.sent_s, strict=True) if sent >= moment_s]
    return min(left) - moment_s if left else math.inf
