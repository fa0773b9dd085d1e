"""Frames of captures, pcap and pcapng, where the IP packet is in them, and the headers of GTP-U tunnels.

Formats: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng; link types of https://www.tcpdump.org/linktypes.html;
GTP-U of 3GPP TS 29.281, clause 5; the PDU session container of 3GPP TS 38.415, clause 5.5.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from .faults import DatasetError

MAGICS = {
    b"\xa1\xb2\xc3\xd4": (">", 1000), b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\x3c\x4d": (">", 1), b"\x4d\x3c\xb2\xa1": ("<", 1),
}  # fmt: skip
"""First bytes of pcap: the byte order, and how many nanoseconds a fraction counts."""
PCAPNG = b"\x0a\x0d\x0d\x0a"
BYTE_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
INTERFACE, SIMPLE, ENHANCED = 1, 3, 6  # kinds of blocks
TIME_RESOLUTION, TIME_OFFSET = 9, 14  # options of an interface
LONGEST = 1 << 18  # bytes of a packet, as tcpdump
MOST_INTERFACES = 256
MOST_NS = (1 << 63) - 1
LINKS: dict[int, tuple[int | None, int]] = {
    1: (12, 14),  # Ethernet
    0: (None, 4), 108: (None, 4),  # BSD loopback
    12: (None, 0), 14: (None, 0), 101: (None, 0), 228: (None, 0), 229: (None, 0),  # IP
    113: (14, 16), 276: (0, 20),  # Linux cooked, both versions
}  # fmt: skip
"""Link types that are read: where the EtherType is, None where there is only IP, and the bytes of the header."""
IP_TYPES, VLAN_TYPES = (0x0800, 0x86DD), (0x8100, 0x88A8, 0x9100)
UDP, GTPU_PORT, T_PDU, CONTAINER = 17, 2152, 255, 0x85


class Frame(NamedTuple):
    """A frame: ns since 1970, its bytes as far as they were kept, its link type, the most bytes kept of any frame."""

    time_ns: int
    data: bytes
    link: int
    snap: int


class IpHeader(NamedTuple):
    """An IP header.

    Attributes:
        protocol: of the payload, and where it begins in the frame.
        source, target: addresses.
        size: octets of the packet with this header.
        identity: what tells packets of the same ends apart.
        later: a later fragment, whose payload begins amid that of the packet.
    """

    protocol: int
    payload: int
    source: bytes
    target: bytes
    size: int
    identity: bytes
    later: bool


class Tunnel(NamedTuple):
    """A GTP-U header: TEID; QFI and 1 for uplink, 0 for downlink, -1 where it has none; where the packet begins."""

    teid: int
    qfi: int
    up: int
    inner: int


class _Interface(NamedTuple):
    """An interface of pcapng; its times are in 1 / ``units`` s after ``offset_s``."""

    link: int
    snap: int
    units: int
    offset_s: int


def is_capture(start: bytes) -> bool:
    """Whether a file begins as pcap or pcapng does."""
    return start[:4] in MAGICS or start[:4] == PCAPNG


def frames(name: str | Path, chunks: Iterable[bytes]) -> Iterator[Frame]:
    """The frames of a capture, from its contents in pieces of any size; ``name`` begins errors.

    Raises:
        DatasetError: not a capture, damaged, or cut off within a packet; packets without times.
    """
    source = _Bytes(name, chunks)
    magic = source.take(4, "its header")
    if magic in MAGICS:
        yield from _pcap(source, *MAGICS[magic])
    elif magic == PCAPNG:
        yield from _pcapng(source)
    else:
        raise DatasetError.at(name, "is no capture; expected pcap or pcapng")


def network_at(data: bytes, link: int) -> int | None:
    """Where the IP packet of a frame begins; None where it has none. Raises `struct.error` where it was cut short."""
    type_at, at = LINKS[link]
    if type_at is not None:
        kind = word(data, type_at)
        while kind in VLAN_TYPES:
            kind, at = word(data, at + 2), at + 4
        if kind not in IP_TYPES:
            return None
    return at


def ip_at(data: bytes, at: int) -> IpHeader | None:
    """The IP header there; None for other bytes. Raises IndexError or `struct.error` where it was cut short."""
    version = data[at] >> 4
    if version == 4:
        header, size = 4 * (data[at] & 15), word(data, at + 2)
        source, target = struct.unpack_from("4s4s", data, at + 12)
        if header < 20 or size < header:
            return None
        identity = data[at + 2 : at + 8] + data[at + 9 : at + 10]
        later = bool(word(data, at + 6) & 0x1FFF)
        return IpHeader(data[at + 9], at + header, source, target, size, identity, later)
    if version != 6:
        return None
    source, target = struct.unpack_from("16s16s", data, at + 8)
    size = 40 + word(data, at + 4)
    return IpHeader(data[at + 6], at + 40, source, target, size, data[at + 4 : at + 7], later=False)


def tunnel_at(data: bytes, at: int) -> Tunnel | None:
    """The GTP-U header after UDP's, of a message with a packet; None for others. Raises IndexError or `struct.error`
    where it was cut short."""
    flags, kind = data[at], data[at + 1]
    if flags >> 4 != 3 or kind != T_PDU:  # version 1, protocol type GTP
        return None
    (teid,) = struct.unpack_from(">I", data, at + 4)
    qfi = up = -1
    if not flags & 7:
        return Tunnel(teid, qfi, up, at + 8)
    following, at = data[at + 11] if flags & 4 else 0, at + 12
    while following:
        length = 4 * data[at]
        if not length:
            return None
        if following == CONTAINER:
            up, qfi = int(data[at + 1] >> 4 > 0), data[at + 2] & 0x3F
        following, at = data[at + length - 1], at + length
    return Tunnel(teid, qfi, up, at)


def word(data: bytes, at: int) -> int:
    """Two bytes in network order; raises `struct.error` where they were cut off."""
    return int(struct.unpack_from(">H", data, at)[0])


class _Bytes:
    """A file's contents, so many bytes at a time."""

    def __init__(self, name: str | Path, chunks: Iterable[bytes]) -> None:
        self._name, self._chunks = name, iter(chunks)
        self._held, self._at = b"", 0

    def take(self, count: int, what: str) -> bytes:
        """The next bytes, none at the end; raises DatasetError where it ends amid them."""
        while len(self._held) - self._at < count:
            chunk = next(self._chunks, b"")
            rest = self._held[self._at :]
            self._held, self._at = rest + chunk, 0
            if not chunk:
                if rest:
                    raise self.refuse(f"ends amid {what}")
                return b""
        self._at += count
        return self._held[self._at - count : self._at]

    def require(self, count: int, what: str) -> bytes:
        """The next bytes; raises DatasetError where it ends before."""
        taken = self.take(count, what)
        if len(taken) < count:
            raise self.refuse(f"ends amid {what}")
        return taken

    def refuse(self, problem: str) -> DatasetError:
        """The error of a file that is damaged."""
        return DatasetError.at(self._name, f"{problem}; expected a whole capture")


def _pcap(source: _Bytes, order: str, per: int) -> Iterator[Frame]:
    _, _, _, _, snap, link = struct.unpack(f"{order}HHiIII", source.require(20, "its header"))
    record, number = struct.Struct(f"{order}IIII"), 1
    while head := source.take(record.size, f"packet {number}"):
        seconds, fraction, kept, length = record.unpack(head)
        if kept > LONGEST or fraction * per >= 1_000_000_000:
            raise source.refuse(f"packet {number}: {kept} bytes kept of {length}, fraction {fraction}")
        data = source.require(kept, f"packet {number}")
        yield Frame(seconds * 1_000_000_000 + fraction * per, data, link & 0xFFFF, snap or LONGEST)
        number += 1


def _pcapng(source: _Bytes) -> Iterator[Frame]:
    order, interfaces = "<", list[_Interface]()
    kind_bytes, number = PCAPNG, 1
    while kind_bytes:
        what = f"block {number}"
        length_bytes, head = source.require(4, what), 8
        if kind_bytes == PCAPNG:
            mark, head = source.require(4, what), 12
            if mark not in BYTE_ORDERS:
                raise source.refuse(f"{what}: no byte order")
            order, interfaces = BYTE_ORDERS[mark], []
        kind, length = struct.unpack(f"{order}II", kind_bytes + length_bytes)
        if not head + 4 <= length <= 4 * LONGEST or length % 4:
            raise source.refuse(f"{what}: {length} bytes")
        body = source.require(length - head, what)[:-4]
        try:
            if kind == INTERFACE:
                interfaces.append(_interface(body, order))
            elif kind == SIMPLE:
                raise source.refuse(f"{what}: a packet without a time")
            elif kind == ENHANCED:
                yield _enhanced(body, order, interfaces)
        except (struct.error, IndexError):
            raise source.refuse(f"{what}: too short, or of an interface that is not declared") from None
        if len(interfaces) > MOST_INTERFACES:
            raise source.refuse(f"more than {MOST_INTERFACES} interfaces")
        number += 1
        kind_bytes = source.take(4, f"block {number}")


def _enhanced(body: bytes, order: str, interfaces: list[_Interface]) -> Frame:
    """The frame in a block; raises IndexError or `struct.error` where that cannot be."""
    number, high, low, kept = struct.unpack_from(f"{order}IIII", body)
    if kept > len(body) - 20:
        raise IndexError
    own = interfaces[number]
    time_ns = own.offset_s * 1_000_000_000 + (high << 32 | low) * 1_000_000_000 // own.units
    return Frame(max(0, min(time_ns, MOST_NS)), body[20 : 20 + kept], own.link, own.snap)


def _interface(body: bytes, order: str) -> _Interface:
    """An interface from its description block; raises IndexError or `struct.error` if the block is too short."""
    link, _, snap = struct.unpack_from(f"{order}HHI", body)
    units, offset_s, at = 10**6, 0, 8
    while at + 4 <= len(body):
        code, length = struct.unpack_from(f"{order}HH", body, at)
        if code == 0:
            break
        if code == TIME_RESOLUTION and length == 1:
            power = body[at + 4]
            units = 2 ** (power & 0x7F) if power & 0x80 else 10**power
        elif code == TIME_OFFSET and length == 8:
            (offset_s,) = struct.unpack_from(f"{order}q", body, at + 4)
        at += 4 + length + -length % 4
    return _Interface(link, snap or LONGEST, units, offset_s)
