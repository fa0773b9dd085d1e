"""Packets of captures, with GTP-U (N3) and without (N6), and their identification at both points."""

from __future__ import annotations

import ipaddress
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from slicepilot.data.captures import GTPU_PORT, LINKS, UDP, Frame, frames, ip_at, network_at, tunnel_at
from slicepilot.data.csv.chunks import read_chunks
from slicepilot.data.faults import DatasetError, Faults

from .rows import Ints

MOST_PACKETS = 20_000_000
KEY_BYTES, LEAST_KEY = 128, 28
"""Bytes after the addresses by which a packet is recognised at the other point; fewer where captures are cut."""
HEADERS = 100  # bytes at most in front of the inner packet's payload
TCP = 6


@dataclass
class Packets:
    """IP packets of captures, N of them: columns (N,).

    Attributes:
        time_ns: since 1970.
        key: of what a UPF does not change of the inner packet; bare: the same without source and ports, for NAT.
        size: bytes of the inner packet.
        tunnelled: on N3, with GTP-U.
        outer: source and destination of the tunnel, as numbers of `names`; -1 without.
        inner: source and destination.
        teid, qfi: of the tunnel, -1 without; up: 1 uplink, 0 downlink, -1 not known.
    """

    time_ns: array[int] = field(default_factory=lambda: array("q"))
    key: array[int] = field(default_factory=lambda: array("q"))
    bare: array[int] = field(default_factory=lambda: array("q"))
    size: array[int] = field(default_factory=lambda: array("q"))
    tunnelled: array[int] = field(default_factory=lambda: array("b"))
    outer_source: array[int] = field(default_factory=lambda: array("q"))
    outer_target: array[int] = field(default_factory=lambda: array("q"))
    source: array[int] = field(default_factory=lambda: array("q"))
    target: array[int] = field(default_factory=lambda: array("q"))
    teid: array[int] = field(default_factory=lambda: array("q"))
    qfi: array[int] = field(default_factory=lambda: array("b"))
    up: array[int] = field(default_factory=lambda: array("b"))
    addresses: dict[bytes, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.time_ns)

    def names(self) -> list[str]:
        """Addresses by number."""
        return [str(ipaddress.ip_address(address)) for address in self.addresses]

    def column(self, name: str) -> Ints:
        return np.asarray(getattr(self, name), np.int64)


def read_packets(paths: Sequence[Path], faults: Faults, most: int = MOST_PACKETS) -> Packets:
    """All IP packets of captures, in the order of the files; of at most ``most`` frames of each.

    Raises:
        DatasetError: a file that is no capture, ends amid a packet, or has more than `MOST_PACKETS`.
    """
    result = Packets()
    snap = min((first.snap for path in paths for first in islice(frames(path, read_chunks(path)), 1)), default=0)
    keep = max(LEAST_KEY, min(KEY_BYTES, snap - HEADERS))
    others = 0
    for path in paths:
        for frame in islice(frames(path, read_chunks(path)), most):
            others += not _add(result, frame, keep)
            if len(result) > MOST_PACKETS:
                raise DatasetError.at(path, f"more than {MOST_PACKETS:,} packets; expected a part of it")
    if others:
        faults.note(f"{others:,} frames are left out, which hold no IP packet (or no whole header of it)")
    return result


def _add(packets: Packets, frame: Frame, keep: int) -> bool:
    """Add the packet of a frame, the inner packet of a tunnel; returns False for a frame without."""
    data, tunnel, outer = frame.data, None, (-1, -1)
    known = packets.addresses
    try:
        at = network_at(data, frame.link) if frame.link in LINKS else None
        ip = None if at is None else ip_at(data, at)
        if ip is None:
            return False
        if ip.protocol == UDP and data[ip.payload + 2 : ip.payload + 4] == GTPU_PORT.to_bytes(2, "big"):
            tunnel = tunnel_at(data, ip.payload + 8)
            inner = None if tunnel is None else ip_at(data, tunnel.inner)
            if inner is None:
                return False
            outer = known.setdefault(ip.source, len(known)), known.setdefault(ip.target, len(known))
            ip = inner
    except (IndexError, struct.error):  # cut short
        return False
    payload = data[ip.payload : ip.payload + keep]
    # A UPF, and a device that completes checksums, may change TTL, DSCP and the checksums of IP, UDP and TCP.
    plain = payload[:6] + payload[8:] if ip.protocol == UDP else payload
    plain = payload[:16] + payload[18:] if ip.protocol == TCP else plain
    plain = plain[: keep - 2]
    rest = plain[4:] if ip.protocol in {UDP, TCP} else plain
    packets.time_ns.append(frame.time_ns)
    packets.key.append(hash((ip.identity, ip.source, ip.target, plain)))
    packets.bare.append(hash((ip.identity, rest)))
    packets.size.append(ip.size)
    packets.tunnelled.append(tunnel is not None)
    packets.outer_source.append(outer[0])
    packets.outer_target.append(outer[1])
    packets.source.append(known.setdefault(ip.source, len(known)))
    packets.target.append(known.setdefault(ip.target, len(known)))
    packets.teid.append(-1 if tunnel is None else tunnel.teid)
    packets.qfi.append(-1 if tunnel is None else tunnel.qfi)
    packets.up.append(-1 if tunnel is None else tunnel.up)
    return True
