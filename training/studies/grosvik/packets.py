"""Packets on a schedule between two network namespaces, each with the times at which it left and came.

Sender and receiver are processes of their own in namespaces of their own, which end with them: nothing is left behind.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroute2 import IPRoute

from slicepilot.controller.system.bpf.libc import call
from slicepilot.controller.system.net.namespaces import CLONE_NEWNET

DEVICE, PEER = "bottleneck", "behind"
SOURCE, DESTINATION, PORT = "10.98.0.1", "10.98.0.2", 7000
STAMP = struct.Struct("=IIQ")  # flow, sequence number, time of sending
RECORD = np.dtype([("flow", "<u4"), ("sequence", "<u4"), ("sent_ns", "<u8"), ("received_ns", "<u8")])
HEADERS_BYTES = 14 + 20 + 8  # Ethernet, IPv4, UDP
SO_TIMESTAMPNS = 35  # include/uapi/asm-generic/socket.h; also the type of its control message
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
TIMESPEC = struct.Struct("=qq")
BUFFER_BYTES = 32 << 20
"""Of sockets: whatever waits in a queue of the link must not hold up the sender."""
PRIORITY = 10  # SCHED_FIFO: the schedule must not depend on how busy the machine is
POLL_S = 0.05


def isolate() -> int:
    """Move this process into a new network namespace; returns its number; raises OSError."""
    call("unshare", CLONE_NEWNET)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    for name in ("all", "default"):  # nothing but the study's packets
        with contextlib.suppress(OSError):
            Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
    return os.getpid()


def connect(peer: int) -> None:
    """Make the link from this namespace to that of another process, both ends up."""
    with IPRoute() as here:
        here.link("add", ifname=DEVICE, kind="veth", peer={"ifname": PEER, "net_ns_pid": peer})
        _bring_up(here, DEVICE, SOURCE)


def accept() -> None:
    """The other end of `connect`."""
    with IPRoute() as here:
        _bring_up(here, PEER, DESTINATION)


def _bring_up(route: Any, device: str, address: str) -> None:
    [index] = route.link_lookup(ifname=device)
    route.addr("add", index=index, address=address, prefixlen=24)
    route.link("set", index=index, state="up")


def send(due_ns: npt.NDArray[np.int64], flows: npt.NDArray[np.int64], priorities: list[int], frame_bytes: int) -> Any:
    """Send a frame of each flow when it is due (CLOCK_REALTIME); returns when each was sent.

    ``priorities`` has the ``SO_PRIORITY`` of each flow's socket. Late frames are sent at once.
    """
    sockets = []
    for priority in priorities:
        each = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority)
        each.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER_BYTES)
        each.connect((DESTINATION, PORT))
        sockets.append(each)
    sent = np.zeros(len(due_ns), np.int64)
    frame = bytearray(frame_bytes - HEADERS_BYTES)
    numbers = [0] * len(priorities)
    for at, (due, flow) in enumerate(zip(due_ns.tolist(), flows.tolist(), strict=True)):
        if (ahead := due - time.time_ns()) > 0:
            time.sleep(1e-9 * ahead)
        now = time.time_ns()
        STAMP.pack_into(frame, 0, flow, numbers[flow], now)
        sockets[flow].send(frame)
        numbers[flow] += 1
        sent[at] = now
    for each in sockets:
        each.close()
    return sent


def receive(until_ns: int) -> npt.NDArray[Any]:
    """All packets that come until then, `RECORD`, with the kernel's time of each (CLOCK_REALTIME)."""
    records = bytearray()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        own.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        own.bind((DESTINATION, PORT))
        own.settimeout(POLL_S)
        while time.time_ns() < until_ns:
            with contextlib.suppress(TimeoutError):
                data, ancillary, _, _ = own.recvmsg(2048, 64)
                seconds, rest = TIMESPEC.unpack_from(ancillary[0][2])
                records += data[: STAMP.size] + (seconds * 1_000_000_000 + rest).to_bytes(8, "little")
    return np.frombuffer(bytes(records), RECORD)
