"""Times and sizes of IP packets, plain or in GTP-U tunnels, out of captures."""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.data.captures import GTPU_PORT, LINKS, UDP, frames, ip_at, network_at, tunnel_at

from .trace import PacketTrace

CUT = "not enough of it was captured; capture with a snapshot length of 128 or more"

Network = IPv4Network | IPv6Network


@dataclass(frozen=True)
class Chosen:
    """Which packets of a capture belong to a slice: those from a subnet, or of a tunnel; None for all."""

    source: Network | None = None
    teid: int | None = None

    def __str__(self) -> str:
        parts = [
            f"from {self.source}" if self.source else "",
            f"in tunnel {self.teid}" if self.teid is not None else "",
        ]
        return " ".join(part for part in parts if part) or "at all"


@dataclass
class _Packets:
    times: array[int] = field(default_factory=lambda: array("q"))  # ns
    sizes: array[int] = field(default_factory=lambda: array("q"))


def read_packets(content: bytes, what: str, chosen: Chosen) -> PacketTrace:
    """Packets of a capture. Where it has GTP-U, those inside tunnels count, with their own sizes, and no others.

    Args:
        chosen: which packets are wanted; times are counted from the first IP packet of all.

    Raises:
        ConfigError: a file that is damaged, times that go back, no packet that is wanted.
    """
    plain, tunnelled = _Packets(), _Packets()
    every = {False: array("q"), True: array("q")}
    for number, (time_ns, data, link, _) in enumerate(frames(what, [content]), start=1):
        where = f"{what}, packet {number}"
        if link not in LINKS:
            raise ConfigError(f"{where}: link type {link}; expected Ethernet, Linux cooked, loopback or raw IP")
        try:
            at = network_at(data, link)
            outer = None if at is None else ip_at(data, at)
            if outer is None:
                continue
            tunnel = None
            if outer.protocol == UDP and not outer.later:
                ports = struct.unpack_from(">HH", data, outer.payload)
                tunnel = tunnel_at(data, outer.payload + 8) if GTPU_PORT in ports else None
            packet = outer if tunnel is None else ip_at(data, tunnel.inner)
        except (IndexError, struct.error):
            raise ConfigError(f"{where}: {CUT}") from None
        if packet is None:
            continue
        before = every[tunnel is not None]
        if before and time_ns < before[-1]:
            raise ConfigError(f"{where}: its time is before that of the packet before it; `reordercap` sorts a capture")
        before.append(time_ns)
        if chosen.teid is not None and (tunnel is None or tunnel.teid != chosen.teid):
            continue
        if chosen.source is not None and ip_address(packet.source) not in chosen.source:
            continue
        packets = plain if tunnel is None else tunnelled
        packets.times.append(time_ns)
        packets.sizes.append(packet.size)
    gtp = bool(every[True])
    packets, times = (tunnelled if gtp else plain), every[gtp]
    if not packets.sizes:
        kind = "packets in GTP-U" if gtp else "IP packets"
        raise ConfigError(f"{what}: no packet {chosen}; it has {len(times)} {kind}")
    if len(times) < 2 or times[0] == times[-1]:
        raise ConfigError(f"{what}: {len(times)} IP packets at the same time; expected packets at different times")
    # After the last packet comes a mean gap, so that a loop keeps the rate.
    duration_s = 1e-9 * (times[-1] - times[0]) * len(times) / (len(times) - 1)
    own_s = np.asarray(1e-9 * (np.asarray(packets.times, np.int64) - times[0]), np.float64)
    return PacketTrace(own_s, np.asarray(packets.sizes, np.int64), duration_s)
