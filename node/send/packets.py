"""User packets that are recognised by a marker in them, and the G-PDUs that they travel in."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

Address = IPv4Address | IPv6Address
GTPU_PORT = 2152  # TS 29.281, clause 4.4.2
DISCARD_PORT = 9  # RFC 863: whoever listens there answers nothing
# From the IP header on, of a user packet: with a tunnel around it still what every IPv4 host takes whole (RFC 791).
SIZE = 400
LONGEST_G_PDU = SIZE + 100
MARK_OCTETS = 16
G_PDU, ERROR_INDICATION = 255, 26  # TS 29.281, table 6.1-1
PDU_SESSION_CONTAINER = 0x85  # TS 29.281, clause 5.2.2.7
UPLINK_PDU = 1  # TS 38.415, clause 5.5.3.1
QFI_MASK = 0x3F
TEID_DATA_I = 16  # TS 29.281, table 8.1-1
_UDP, _FIRST_HOPS = 17, 64
_VERSION_1_GTP, _EXTENSION, _OPTIONAL = 0x30, 0x04, 0x07
_ETHERTYPES = {4: 0x0800, 6: 0x86DD}


@dataclass(frozen=True)
class Message:
    """A GTP-U message as it was seen on N3; ``content`` is what comes behind its headers, as far as it was captured."""

    source: Address
    destination: Address
    kind: int
    teid: int
    qfi: int | None
    content: bytes


def udp_packet(source: Address, destination: Address, port: int, payload: bytes, hops: int = _FIRST_HOPS) -> bytes:
    """An IP packet with a UDP datagram, both ports the same (RFC 791, RFC 8200, RFC 768)."""
    length = 8 + len(payload)
    pseudo = source.packed + destination.packed + struct.pack("!2I", length, _UDP)
    datagram = struct.pack("!4H", port, port, length, 0) + payload
    # A sum of 0 would say that there is none.
    datagram = datagram[:6] + struct.pack("!H", _checksum(pseudo + datagram) or 0xFFFF) + payload
    if source.version == 6:
        return struct.pack("!IHBB", 6 << 28, length, _UDP, hops) + source.packed + destination.packed + datagram
    dont_fragment = 0x4000
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 0, dont_fragment, hops, _UDP, 0)
    head += source.packed + destination.packed
    return head[:10] + struct.pack("!H", _checksum(head)) + head[12:] + datagram


def marked(mark: bytes, family: int) -> bytes:
    """Payload of a user packet: the mark, and so much behind it that the packet has `SIZE` octets."""
    return mark.ljust(SIZE - 8 - (20 if family == 4 else 40), b"\0")


def g_pdu(teid: int, qfi: int | None, packet: bytes) -> bytes:
    """A G-PDU of the uplink (TS 29.281, clause 5.1), with a PDU Session Container where there is a QFI (TS 38.415)."""
    if qfi is None:
        return struct.pack("!BBHI", _VERSION_1_GTP, G_PDU, len(packet), teid) + packet
    extension = bytes([0, 0, 0, PDU_SESSION_CONTAINER, 1, UPLINK_PDU << 4, qfi & QFI_MASK, 0])
    length = len(extension) + len(packet)
    return struct.pack("!BBHI", _VERSION_1_GTP | _EXTENSION, G_PDU, length, teid) + extension + packet


def frame(to: bytes, source: bytes, packet: bytes) -> bytes:
    """An Ethernet frame around an IP packet; hardware addresses of six octets."""
    return to + source + struct.pack("!H", _ETHERTYPES[packet[0] >> 4]) + packet


def read_gtpu(packet: bytes) -> Message | None:
    """What an IP packet to the GTP-U port holds; None for anything else, and for what is cut off or malformed."""
    try:
        ends = addresses(packet)
        if ends is None:
            return None
        message = packet[8 + (4 * (packet[0] & 0xF) if ends[0].version == 4 else 40) :]
        flags, kind, _, teid = struct.unpack_from("!BBHI", message)
        if flags & 0xF0 != _VERSION_1_GTP:
            return None
        qfi, at = None, 8
        if flags & _OPTIONAL:
            following, at = message[11] if flags & _EXTENSION else 0, 12
            while following:
                octets = 4 * message[at]
                if following == PDU_SESSION_CONTAINER:
                    qfi = message[at + 2] & QFI_MASK
                if octets == 0:
                    return None
                following, at = message[at + octets - 1], at + octets
    except (IndexError, struct.error):
        return None
    return Message(*ends, kind, teid, qfi, message[at:])


def addresses(packet: bytes) -> tuple[Address, Address] | None:
    """Source and destination of an IP packet; None where it is none."""
    version = packet[0] >> 4 if packet else 0
    at, octets = {4: (12, 4), 6: (8, 16)}.get(version, (0, 0))
    if not octets or len(packet) < at + 2 * octets:
        return None
    return ip_address(packet[at : at + octets]), ip_address(packet[at + octets : at + 2 * octets])


def refused_tunnel(message: Message) -> int | None:
    """The tunnel that an Error Indication says its sender does not know (TS 29.281, clause 7.3.1)."""
    if message.kind != ERROR_INDICATION or len(message.content) < 5 or message.content[0] != TEID_DATA_I:
        return None
    return int.from_bytes(message.content[1:5], "big")


def _checksum(octets: bytes) -> int:
    """RFC 1071."""
    total = sum(struct.unpack(f"!{(len(octets) + 1) // 2}H", octets + b"\0" * (len(octets) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
