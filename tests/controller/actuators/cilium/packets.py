"""Packets through the model: sent from the pod, stamped by its programs, kept until their time by who receives them.

Instead of sch_fq, which this kernel does not have, a process holds each packet until the time of departure that the
program has given it. So who is dropped and who leaves when is decided by the same arithmetic, on real packets of the
kernel; what fq adds to that (its own limits of 10,000 packets and 100 a flow, its timer) is not there.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from slicepilot.controller.system.net.namespaces import inside

from .machine import FAR, Datapath

PORT = 7000
SO_NO_CHECK = 11
HEADERS = 14 + 20 + 8
PAYLOAD = struct.Struct("=QQ")  # time of departure, which the program writes; when it was sent
SIZE = 1000 - HEADERS


@dataclass
class Flow:
    """What became of what was sent.

    Attributes:
        sent: packets.
        waits_ms: of those that left, from when they were sent to their time of departure.
        departures_s: CLOCK_MONOTONIC.
    """

    sent: int = 0
    waits_ms: list[float] = field(default_factory=list)
    departures_s: list[float] = field(default_factory=list)

    @property
    def loss(self) -> float:
        """Share of packets that did not leave."""
        return 1 - len(self.waits_ms) / self.sent

    def rate_mbps(self, after_s: float = 0.5) -> float:
        """On the wire, by times of departure, without the beginning."""
        times = np.sort(self.departures_s)
        times = times[times >= times[0] + after_s]
        return float(8e-6 * (SIZE + HEADERS) * (len(times) - 1) / (times[-1] - times[0]))

    def wait_ms(self, quantile: float) -> float:
        return float(np.quantile(self.waits_ms, quantile))


def send(path: Datapath, offered_mbps: float, seconds: float) -> Flow:
    """So much for so long, in packets of 1000 bytes."""
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
        time.sleep(0.001)
    ended.set()
    worker.join()
    sender.close()
    receiver.close()
    return flow


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Before what else the machine does: a sender that waits for a CPU offers less than it says."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _socket(receive: bool = False) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)  # what is written into a packet on its way is in no checksum
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
        if ended.is_set() and held:
            time.sleep(min(0.005, max(held[0][0] - now, 0) / 1e9))
