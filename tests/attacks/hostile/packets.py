"""Packets of forged senders, as a hostile RAN or UE puts them into a tunnel."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from slicepilot.controller.system.net.namespaces import inside
from slicepilot.testbed.lifecycle.layout import GTPU_PORT, netns_path

REST_S = 0.002  # between two bursts of a flood


def spoofed(number: int, teid: int, destination: str) -> bytes:
    """A G-PDU (TS 29.281, clause 5.1) with a small packet from the sender of that number."""
    payload = struct.pack("!HHHH", 4000, 9, 8 + 32, 0) + number.to_bytes(32, "big")
    addresses = struct.pack("!I", 0x0B000000 + number) + socket.inet_aton(destination)
    inner = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), number & 0xFFFF, 0, 64, 17, 0) + addresses + payload
    return struct.pack("!BBHI", 0x30, 0xFF, len(inner), teid) + inner


@contextlib.contextmanager
def flooding(ran: str, source: str, target: str, packets: Sequence[bytes], per_s: int) -> Iterator[Callable[[], int]]:
    """Packets in turn, so many a second, from a RAN's namespace to a UPF's N3; yields how many were sent."""
    ended, sent = threading.Event(), [0]

    def opened() -> socket.socket:
        gnb = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        gnb.bind((source, 0))
        return gnb

    gnb = inside(netns_path(ran), opened)

    def send() -> None:
        began = time.monotonic()
        while not ended.is_set():
            while sent[0] < (time.monotonic() - began) * per_s:
                gnb.sendto(packets[sent[0] % len(packets)], (target, GTPU_PORT))
                sent[0] += 1
            time.sleep(REST_S)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield lambda: sent[0]
    finally:
        ended.set()
        thread.join()
        gnb.close()
