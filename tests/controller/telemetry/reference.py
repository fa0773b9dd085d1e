"""A reference for the BPF programs: scapy reads the headers of a packet, the standards decide what is counted.

It shares nothing with the programs, which walk a packet with one cursor; here each header is cut out and read by
itself. Where the programs do less than the standards, by intention, a constant has the name of that limit, and the
header of the program that says so.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest

pytest.importorskip("scapy")

from scapy.contrib.gtp import GTP_U_Header, GTPPDUSessionContainer
from scapy.contrib.pfcp import PFCP
from scapy.fields import ByteField, StrLenField
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet

ETHERTYPES = {0x0800: 4, 0x86DD: 6}
VLAN_TAGS = (0x8100, 0x88A8)
GTPU_PORT, PFCP_PORT = 2152, 8805
G_PDU, PDU_SESSION_CONTAINER = 255, 0x85
AUTHENTICATION, FRAGMENT = 51, 44
EXTENSION_HEADERS = {0, 43, FRAGMENT, AUTHENTICATION, 60}
"""Of IPv6 (RFC 8200, 4.1; RFC 4302), behind each of which comes another header."""

# -- limits --------------------------------------------------------------------------------------------------------

OUTER_EXTENSIONS_READ = ((), (FRAGMENT,))
"""headers.h: before an outer UDP header no other chain is walked."""
MOST_EXTENSIONS = 6
"""gtpu.h: a longer chain is malformed."""
N3_HEADERS = 256
"""gtpu.h, packets.bpf.c: headers beyond so many octets are malformed where a driver leaves them outside of the linear
part of its buffer."""


# -- headers -------------------------------------------------------------------------------------------------------


class Extension(Packet):  # type: ignore[misc]
    """A GTP-U extension header (TS 29.281, figure 5.2.1-1): its length in units of four octets, itself included."""

    name = "extension"
    fields_desc: ClassVar[list[Any]] = [
        ByteField("words", 1),
        StrLenField("content", b"", length_from=lambda element: 4 * element.words - 2),
        ByteField("next", 0),
    ]


def fields(layer: type[Packet], octets: bytes) -> Any:
    """One header's fields; octets behind it are left alone."""
    header = layer()
    header.do_dissect(octets)
    return header


@dataclass(frozen=True)
class IpPacket:
    """``payload``: what of it is there; ``next``: what its own header says comes next; ``upper``: the protocol behind
    the extension headers, None where they do not say."""

    version: int
    source: bytes
    destination: bytes
    next: int
    upper: int | None
    extensions: tuple[int, ...]
    bytes: int
    body: bytes
    payload: bytes
    offset: int
    more: bool


def read_frame(frame: bytes) -> tuple[int, bytes] | None:
    """The IP version that a frame names, and what is behind its header. The kernel takes one VLAN tag off before any
    hook, and drops a frame that ends with it (``skb_vlan_untag``)."""
    if len(frame) < 14:
        return None
    kind, rest = fields(Ether, frame[:14]).type, frame[14:]
    if kind in VLAN_TAGS:
        if len(rest) < 6:
            return None
        kind, rest = fields(Dot1Q, rest[:4]).type, rest[4:]
    return (ETHERTYPES[kind], rest) if kind in ETHERTYPES else None


def read_ip(octets: bytes, length: int | None = None) -> IpPacket | None:
    """By RFC 791 and RFC 8200; None for what is none. ``length``: of all of it, where only a part is there."""
    length = len(octets) if length is None else length
    version = octets[0] >> 4 if octets else 0
    if version == 4 and len(octets) >= 20:
        four = fields(IP, octets[:20])
        header = 4 * four.ihl
        if four.ihl < 5 or not header <= four.len <= length or header > len(octets):
            return None
        body = octets[header : four.len]
        ends = ipaddress.ip_address(four.src).packed, ipaddress.ip_address(four.dst).packed
        more = bool(int(four.flags) & 1)
        return IpPacket(4, *ends, four.proto, four.proto, (), four.len, body, body, four.frag, more)
    if version == 6 and len(octets) >= 40:
        six = fields(IPv6, octets[:40])
        if 40 + six.plen > length:
            return None
        body = octets[40 : 40 + six.plen]
        ends = ipaddress.ip_address(six.src).packed, ipaddress.ip_address(six.dst).packed
        upper, extensions, payload, offset, more = _walk(six.nh, body)
        return IpPacket(6, *ends, six.nh, upper, extensions, 40 + six.plen, body, payload, offset, more)
    return None


def _walk(kind: int, octets: bytes) -> tuple[int | None, tuple[int, ...], bytes, int, bool]:
    """Over IPv6 extension headers: the upper protocol, the headers, what is behind, fragment offset, more to come."""
    seen: tuple[int, ...] = ()
    offset, more = 0, False
    while kind in EXTENSION_HEADERS:
        if len(octets) < 8:
            return None, (*seen, kind), b"", offset, more
        size = 8 if kind == FRAGMENT else 4 * (octets[1] + 2) if kind == AUTHENTICATION else 8 * (octets[1] + 1)
        if kind == FRAGMENT:
            fragment = fields(IPv6ExtHdrFragment, octets[:8])
            offset, more = fragment.offset, bool(fragment.m)
        seen, kind, octets = (*seen, kind), octets[0], octets[size:]
        if offset:
            return None, seen, octets, offset, more
    return kind, seen, octets, offset, more


@dataclass(frozen=True)
class Datagram:
    """``octets``: what of its payload is there; ``length``: of all of it, None where that cannot be (RFC 768)."""

    ip: IpPacket
    source_port: int
    destination_port: int
    octets: bytes
    length: int | None

    @property
    def whole(self) -> bool:
        """Whether it came in one piece."""
        return not self.ip.more


def read_datagram(frame: bytes) -> Datagram | None:
    """An outer datagram: UDP in the first or only fragment of a packet that is there."""
    if (result := read_frame(frame)) is None:
        return None
    version, octets = result
    ip = read_ip(octets)
    if ip is None or ip.version != version or ip.upper != 17 or ip.offset or len(ip.payload) < 8:
        return None
    if ip.extensions not in OUTER_EXTENSIONS_READ:
        return None
    udp, octets = fields(UDP, ip.payload[:8]), ip.payload[8:]
    length = udp.len - 8
    if length < 0 or (length > len(octets) and not ip.more):
        return Datagram(ip, udp.sport, udp.dport, octets, None)
    return Datagram(ip, udp.sport, udp.dport, octets[:length], length)


# -- N3 ------------------------------------------------------------------------------------------------------------


class N3(NamedTuple):
    """``what``: passed, malformed, other, or counted; ``far``: headers go beyond N3_HEADERS."""

    what: str
    teid: int = 0
    qfi: int | None = None
    inner: IpPacket | None = None
    far: bool = False


def read_n3(frame: bytes) -> N3:
    """By TS 29.281, 5.1 and 5.2.1, with the QFI by TS 38.415, 5.5.2."""
    datagram = read_datagram(frame)
    if datagram is None or datagram.destination_port != GTPU_PORT:
        return N3("passed")
    octets, length = datagram.octets, datagram.length
    if length is None or len(octets) < 8:
        return N3("malformed")
    header = fields(GTP_U_Header, octets[:12].ljust(12, b"\0"))
    if (header.version, header.PT) != (1, 1):
        return N3("malformed")
    if header.gtp_type != G_PDU:
        return N3("other")
    at, kind, qfi, seen = 8, 0, None, 0
    if header.E or header.S or header.PN:
        at, kind = 12, header.next_ex if header.E else 0
    if len(octets) < at:
        return N3("malformed")
    while kind:
        rest = octets[at:]
        size = 4 * rest[0] if rest else 0
        seen += 1
        if not 0 < size <= len(rest) or seen > MOST_EXTENSIONS:
            return N3("malformed")
        if kind == PDU_SESSION_CONTAINER:
            qfi = _qfi(rest[:size])
        at, kind = at + size, fields(Extension, rest[:size]).next
    inner = read_ip(octets[at:], length - at)
    if inner is None:
        return N3("malformed")
    inner_header = 4 * (octets[at] & 15) if inner.version == 4 else 40
    headers = 14 + datagram.ip.bytes - len(datagram.ip.payload) + 8 + at + inner_header
    return N3("counted", header.teid, qfi, inner, headers > N3_HEADERS)


def _qfi(container: bytes) -> int:
    if container[1] >> 4 > 1:  # no PDU type that is defined; all that are have the QFI in the same octet
        return container[2] & 0x3F
    return int(fields(GTPPDUSessionContainer, container + bytes(64)).QFI)


@dataclass(frozen=True)
class Share:
    """What of an N3 is a slice's: tunnels before pools, and in them its QFIs, none: all (``bpf/sharing.h``)."""

    teids: tuple[int, ...] = ()
    pools: tuple[str, ...] = ()
    qfis: tuple[int, ...] = ()


def owner(shares: Sequence[Share], actual: N3) -> int | None:
    """The slice of a counted packet."""
    assert actual.inner is not None
    candidates = [number for number, item in enumerate(shares) if actual.teid in item.teids]
    if not candidates:
        source = ipaddress.ip_address(actual.inner.source)
        pools = [
            (pool.prefixlen, number)
            for number, item in enumerate(shares)
            for pool in map(ipaddress.ip_network, item.pools)
            if source.version == pool.version and source in pool
        ]
        longest = max((length for length, _ in pools), default=0)
        candidates = [number for length, number in pools if length == longest]
    fitting = [number for number in candidates if not shares[number].qfis or actual.qfi in shares[number].qfis]
    return fitting[0] if fitting else None


# -- beyond the UPF ------------------------------------------------------------------------------------------------


def read_exit(frame: bytes) -> IpPacket | None:
    """A packet at N6; inner.h: its first octet tells the version, whatever IP the frame says."""
    result = read_frame(frame)
    return None if result is None else read_ip(result[1])


def conversation(packet: IpPacket) -> tuple[object, ...]:
    """The conversation: addresses, protocol, ports. inner.h: IPv6 extension headers are payload."""
    ports = packet.body[:4] if packet.next in (6, 17) and len(packet.body) >= 4 else bytes(4)
    fragment = packet.version == 4 and bool(packet.offset or packet.more)
    return packet.source, packet.destination, packet.next, None if fragment else ports


def sender(packet: IpPacket) -> tuple[object, ...]:
    """A UE: its address, or the /64 that is its own (TS 23.501, 5.8.2.2.3)."""
    return packet.version, packet.source[: 4 if packet.version == 4 else 8]


# -- services ------------------------------------------------------------------------------------------------------


def read_exchange(frame: bytes, ports: Mapping[int, int], *, answer: bool) -> tuple[int, int] | None:
    """Slice and octets of a request or an answer, which has payload; services.h: no IPv6 extension header is walked,
    and what UDP says of its length is not looked at."""
    if (result := read_frame(frame)) is None:
        return None
    ip = read_ip(result[1])
    if ip is None or ip.version != result[0] or ip.offset or ip.extensions:
        return None
    if ip.upper == 6 and len(ip.payload) >= 20:
        tcp = fields(TCP, ip.payload[:20])
        header = 4 * tcp.dataofs
        if header < 20:
            return None
    elif ip.upper == 17 and len(ip.payload) >= 8:
        tcp, header = fields(UDP, ip.payload[:8]), 8
    else:
        return None
    slice_ = ports.get(tcp.sport if answer else tcp.dport)
    return None if len(ip.payload) <= header or slice_ is None else (slice_, ip.bytes)


# -- N4 ------------------------------------------------------------------------------------------------------------

OF_SESSIONS = {5, 6, 9, 10, *range(50, 58)}
"""Association set-up and release, all of sessions (TS 29.244, table 7.3-1)."""
KINDS = {
    1: "heartbeat",
    50: "establishment",
    52: "modification",
    54: "deletion",
    56: "report",
    **dict.fromkeys((5, 7, 9), "association"),
    **dict.fromkeys((3, 12, 14, 16), "other"),
}
"""Requests; the answer has the next number."""


def read_pfcp(datagram: Datagram) -> Any:
    """The header (TS 29.244, 7.2.2), or None."""
    octets = datagram.octets
    if len(octets) < 8:
        return None
    header = fields(PFCP, octets[:16].ljust(16, b"\0"))
    return header if header.version == 1 and len(octets) >= (16 if header.S else 8) else None


def read_n4(frame: bytes, addresses: Sequence[bytes]) -> Datagram | None:
    """A message to a UPF that tells of sessions, or that may as others follow it in the datagram."""
    datagram = read_datagram(frame)
    if datagram is None or datagram.length is None or datagram.ip.destination not in addresses:
        return None
    if PFCP_PORT not in (datagram.source_port, datagram.destination_port):
        return None
    header = read_pfcp(datagram)
    wanted = header is not None and (header.message_type in OF_SESSIONS or header.spare_b4)
    return datagram if wanted else None


def read_transaction(frame: bytes) -> tuple[str, str] | None:
    """Kind, and whether it is a request or an answer."""
    datagram = read_datagram(frame)
    if datagram is None or datagram.length is None or (header := read_pfcp(datagram)) is None:
        return None
    if datagram.destination_port == PFCP_PORT and header.message_type in KINDS:
        return KINDS[header.message_type], "request"
    if datagram.source_port == PFCP_PORT and header.message_type - 1 in KINDS:
        return KINDS[header.message_type - 1], "answer"
    return None
