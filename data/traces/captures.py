"""Packets from captures: times and sizes of IP packets, plain or in GTP-U tunnels, out of pcap and pcapng files.

Formats: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng; GTP-U: 3GPP TS 29.281, 5.1.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address

import numpy as np

from slicepilot.configs import ConfigError

from .trace import PacketTrace

PCAP = {  # magic number: byte order, units of a second
    b"\xd4\xc3\xb2\xa1": ("<", 10**6), b"\xa1\xb2\xc3\xd4": (">", 10**6),
    b"\x4d\x3c\xb2\xa1": ("<", 10**9), b"\xa1\xb2\x3c\x4d": (">", 10**9),
}  # fmt: skip
PCAPNG = b"\x0a\x0d\x0d\x0a"
SECTION, INTERFACE, SIMPLE, ENHANCED = 0x0A0D0D0A, 1, 3, 6
TIME_RESOLUTION, TIME_OFFSET = 9, 14  # options of an interface
MOST_PACKET = 1 << 18  # tcpdump's largest snapshot length

# Link types (tcpdump.org/linktypes.html): where the EtherType is, or None for an IP packet, and the header's length.
LINKS: dict[int, tuple[int | None, int]] = {
    1: (12, 14),  # Ethernet
    0: (None, 4), 108: (None, 4),  # BSD loopback
    12: (None, 0), 14: (None, 0), 101: (None, 0), 228: (None, 0), 229: (None, 0),  # IP
    113: (14, 16), 276: (0, 20),  # Linux cooked, both versions
}  # fmt: skip
IP_TYPES, VLAN_TYPES = (0x0800, 0x86DD), (0x8100, 0x88A8, 0x9100)
UDP, GTP_PORT, G_PDU = 17, 2152, 255
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


def is_capture(content: bytes) -> bool:
    """Whether a file is pcap or pcapng by its first octets."""
    return content[:4] in PCAP or content[:4] == PCAPNG


def read_packets(content: bytes, what: str, chosen: Chosen) -> PacketTrace:
    """Packets of a capture. Where it has GTP-U, those inside tunnels count, with their own sizes, and no others.

    Args:
        content: of the file.
        what: begins errors.
        chosen: which packets are wanted; times are counted from the first IP packet of all.

    Raises:
        ConfigError: a file that is damaged, times that go back, no packet that is wanted.
    """
    plain, tunnelled = _Packets(), _Packets()
    every = {False: array("q"), True: array("q")}
    for number, (time_ns, link, data) in enumerate(_records(content, what), start=1):
        where = f"{what}, packet {number}"
        try:
            packet = _network_packet(data, link, where)
            if packet is None:
                continue
            tunnel = _tunnel(packet)
            inner, teid = (packet, None) if tunnel is None else tunnel
            size, source = _size_and_source(inner)
        except (IndexError, struct.error):
            raise ConfigError(f"{where}: {CUT}") from None
        if size is None:
            continue
        before = every[tunnel is not None]
        if before and time_ns < before[-1]:
            raise ConfigError(f"{where}: its time is before that of the packet before it; `reordercap` sorts a capture")
        before.append(time_ns)
        if chosen.teid is not None and teid != chosen.teid:
            continue
        if chosen.source is not None and ip_address(source) not in chosen.source:
            continue
        packets = plain if tunnel is None else tunnelled
        packets.times.append(time_ns)
        packets.sizes.append(size)
    gtp = bool(every[True])
    packets, times = (tunnelled if gtp else plain), every[gtp]
    if not packets.sizes:
        kind = "packets in GTP-U" if gtp else "IP packets"
        raise ConfigError(f"{what}: no packet {chosen}; it has {len(times)} {kind}")
    if len(times) < 2 or times[0] == times[-1]:
        raise ConfigError(f"{what}: {len(times)} IP packets at one time; expected a capture that lasts")
    # After the last packet comes a mean gap, so that a loop keeps the rate.
    duration_s = 1e-9 * (times[-1] - times[0]) * len(times) / (len(times) - 1)
    own_s = np.asarray(1e-9 * (np.asarray(packets.times, np.int64) - times[0]), np.float64)
    return PacketTrace(own_s, np.asarray(packets.sizes, np.int64), duration_s)


def _records(content: bytes, what: str) -> Iterator[tuple[int, int, memoryview]]:
    """Time in ns, link type and captured octets of each packet."""
    return _pcapng(content, what) if content[:4] == PCAPNG else _pcap(content, what)


def _pcap(content: bytes, what: str) -> Iterator[tuple[int, int, memoryview]]:
    order, units = PCAP[content[:4]]
    if len(content) < 24:
        raise ConfigError(f"{what}: ends within its header")
    link = struct.unpack_from(order + "I", content, 20)[0] & 0xFFFF
    record, at, view = struct.Struct(order + "IIII"), 24, memoryview(content)
    while at < len(content):
        if at + record.size > len(content):
            raise ConfigError(f"{what}: ends within a packet, after {at} octets")
        seconds, fraction, captured, _ = record.unpack_from(content, at)
        at += record.size
        if captured > MOST_PACKET or fraction >= units:
            raise ConfigError(f"{what}: damaged at octet {at}: no packet has {captured} octets")
        if at + captured > len(content):
            raise ConfigError(f"{what}: ends within a packet, after {len(content)} octets")
        yield seconds * 10**9 + fraction * (10**9 // units), link, view[at : at + captured]
        at += captured


def _pcapng(content: bytes, what: str) -> Iterator[tuple[int, int, memoryview]]:
    at, order, view = 0, "<", memoryview(content)
    interfaces: list[tuple[int, int, int]] = []  # link type, units of a second, offset in s
    while at < len(content):
        try:
            kind, length = struct.unpack_from(order + "II", content, at)
            if kind == SECTION:
                order = "<" if content[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
                length, interfaces = struct.unpack_from(order + "I", content, at + 4)[0], []
            if length < 12 or length % 4 or at + length > len(content):
                raise ConfigError(f"{what}: damaged, or ends within a block, at octet {at}")
            body = view[at + 8 : at + length - 4]
            if kind == INTERFACE:
                interfaces.append(_interface(body, order))
            elif kind == SIMPLE:
                raise ConfigError(f"{what}: has packets without times, at octet {at}")
            elif kind == ENHANCED:
                interface, high, low, captured = struct.unpack_from(order + "IIII", body)
                link, units, offset_s = interfaces[interface]
                if captured > len(body) - 20:
                    raise ConfigError(f"{what}: damaged at octet {at}: no packet has {captured} octets")
                ticks = (high << 32) + low
                yield (offset_s * 10**9 + ticks * 10**9 // units) & (2**63 - 1), link, body[20 : 20 + captured]
            at += length
        except (struct.error, IndexError):
            raise ConfigError(f"{what}: damaged, or ends within a block, at octet {at}") from None


def _interface(body: memoryview, order: str) -> tuple[int, int, int]:
    link, units, offset_s, at = struct.unpack_from(order + "H", body)[0], 10**6, 0, 8
    while at + 4 <= len(body):
        code, length = struct.unpack_from(order + "HH", body, at)
        if code == 0:
            break
        if code == TIME_RESOLUTION:
            power = body[at + 4]
            units = 2 ** (power & 0x7F) if power & 0x80 else 10 ** min(power, 18)
        elif code == TIME_OFFSET:
            offset_s = struct.unpack_from(order + "q", body, at + 4)[0]
        at += 4 + length + -length % 4
    return link, units, offset_s


def _network_packet(data: memoryview, link: int, where: str) -> memoryview | None:
    """The IP packet in a frame; None where there is another protocol in it."""
    if link not in LINKS:
        raise ConfigError(f"{where}: link type {link}; expected Ethernet, Linux cooked, loopback or raw IP")
    type_at, at = LINKS[link]
    if type_at is not None:
        kind = _word(data, type_at)
        while kind in VLAN_TYPES:
            kind, at = _word(data, at + 2), at + 4
        if kind not in IP_TYPES:
            return None
    return data[at:]


def _tunnel(packet: memoryview) -> tuple[memoryview, int] | None:
    """The packet inside a GTP-U tunnel and its TEID; None for a packet in none."""
    version = packet[0] >> 4
    if version == 4:
        at, protocol = 4 * (packet[0] & 0xF), packet[9]
        if _word(packet, 6) & 0x1FFF:  # no first fragment: no UDP header
            return None
    else:
        at, protocol = 40, packet[6] if version == 6 else 0
    if protocol != UDP or GTP_PORT not in struct.unpack_from(">HH", packet, at):
        return None
    at += 8
    flags, kind = packet[at], packet[at + 1]
    if flags >> 4 != 3 or kind != G_PDU:  # version 1, protocol type GTP
        return None
    teid = struct.unpack_from(">I", packet, at + 4)[0]
    at += 8
    if flags & 7:
        following, at = packet[at + 3], at + 4
        while flags & 4 and following:
            length = 4 * packet[at]
            if not length:
                return None
            following, at = packet[at + length - 1], at + length
    return packet[at:], teid


def _size_and_source(packet: memoryview) -> tuple[int | None, bytes]:
    """Octets of an IP packet with its header, and its source address; None for what is no IP packet."""
    version = packet[0] >> 4
    if version == 4:
        return _word(packet, 2) or None, struct.unpack_from("4s", packet, 12)[0]
    if version == 6:
        return 40 + _word(packet, 4), struct.unpack_from("16s", packet, 8)[0]
    return None, b""


def _word(data: memoryview, at: int) -> int:
    """Two octets in network order; raises struct.error where they were cut off."""
    return int(struct.unpack_from(">H", data, at)[0])
