"""Packets of captures: pcap and pcapng, Ethernet or bare IP, with GTP-U (N3) and without (N6).

Formats: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng; link types of https://www.tcpdump.org/linktypes.html;
GTP-U of 3GPP TS 29.281, clause 5; the PDU session container of 3GPP TS 38.415, clause 5.5.
"""

from __future__ import annotations

import ipaddress
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slicepilot.data.csv.chunks import OnProgress, read_chunks
from slicepilot.data.faults import DatasetError, Faults

MAGICS = {
    b"\xa1\xb2\xc3\xd4": (">", 1000), b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\x3c\x4d": (">", 1), b"\x4d\x3c\xb2\xa1": ("<", 1),
}  # fmt: skip
"""First bytes of pcap: the byte order, and how many nanoseconds a fraction counts."""
PCAPNG = b"\x0a\x0d\x0d\x0a"
LONGEST = 1 << 18  # bytes of a packet, as tcpdump
MOST_PACKETS = 20_000_000
MOST_INTERFACES = 256
GTPU_PORT, T_PDU, CONTAINER = 2152, 255, 0x85
KEY_BYTES, LEAST_KEY = 128, 28
"""Bytes after the addresses by which a packet is recognised at the other point; fewer where captures are cut."""
HEADERS = 100  # bytes at most in front of the inner packet's payload
ETHERNET, RAW, SLL, SLL2, NULL, LOOP = 1, (12, 14, 101, 228, 229), 113, 276, 0, 108
_TAGS = {0x8100, 0x88A8, 0x9100}
_UDP, _TCP = 17, 6

Ints = npt.NDArray[np.int64]


class Frame(NamedTuple):
    """A captured frame: its time, its bytes as far as they were kept, the kind of its link."""

    time_ns: int
    data: bytes
    link: int


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
        """Number of packets N."""
        return len(self.time_ns)

    def names(self) -> list[str]:
        """Addresses by number."""
        return [str(ipaddress.ip_address(address)) for address in self.addresses]

    def column(self, name: str) -> Ints:
        """A column (N,)."""
        return np.asarray(getattr(self, name), np.int64)


def is_capture(start: bytes) -> bool:
    """Whether a file begins as pcap or pcapng does."""
    return start[:4] in MAGICS or start[:4] == PCAPNG


def read_packets(
    paths: Sequence[Path], faults: Faults, on_progress: OnProgress | None = None, most: int = MOST_PACKETS
) -> Packets:
    """All IP packets of captures, in the order of the files; of at most ``most`` frames of each.

    Raises:
        DatasetError: a file that is no capture, ends amid a packet, or has more than `MOST_PACKETS`.
    """
    result = Packets()
    snap = min((_snap(path) for path in paths), default=LONGEST)
    keep = max(LEAST_KEY, min(KEY_BYTES, snap - HEADERS))
    others = 0
    for path in paths:
        for number, frame in enumerate(frames(path, on_progress)):
            if number >= most:
                break
            others += not _add(result, frame, keep)
            if len(result) > MOST_PACKETS:
                raise DatasetError.at(path, f"more than {MOST_PACKETS:,} packets; expected a part of it")
    if others:
        faults.note(f"{others:,} frames are left out, which hold no IP packet (or no whole header of it)")
    return result


def _snap(path: Path) -> int:
    """How many bytes of a packet a capture keeps, by its header."""
    start = next(read_chunks(path), b"")
    if start[:4] in MAGICS and len(start) >= 24:
        (snap,) = struct.unpack_from(f"{MAGICS[start[:4]][0]}I", start, 16)
    elif start[:4] == PCAPNG and len(start) >= 48:
        order = "<" if start[8:12] == b"\x4d\x3c\x2b\x1a" else ">"
        (length,) = struct.unpack_from(f"{order}I", start, 4)
        snap = struct.unpack_from(f"{order}I", start, length + 12)[0] if 28 <= length <= len(start) - 16 else 0
    else:
        return LONGEST
    return snap or LONGEST  # 0: no limit


class _Bytes:
    """A file's contents, so many bytes at a time."""

    def __init__(self, path: Path, on_progress: OnProgress | None) -> None:
        self.path = path
        self._chunks = read_chunks(path, on_progress)
        self._held, self._at = b"", 0

    def take(self, count: int, what: str) -> bytes:
        """The next bytes, none at the end; raises DatasetError where it ends amid them."""
        while len(self._held) - self._at < count:
            chunk = next(self._chunks, b"")
            rest = self._held[self._at :]
            self._held, self._at = rest + chunk, 0
            if not chunk:
                if rest:
                    raise DatasetError.at(self.path, f"ends amid {what}; expected a whole capture")
                return b""
        self._at += count
        return self._held[self._at - count : self._at]

    def refuse(self, problem: str) -> DatasetError:
        """The error of a file that is damaged."""
        return DatasetError.at(self.path, f"{problem}; expected a whole capture")


def frames(path: Path, on_progress: OnProgress | None = None) -> Iterator[Frame]:
    """The frames of a capture; raises DatasetError for any other file, or one that is damaged."""
    source = _Bytes(path, on_progress)
    magic = source.take(4, "its header")
    if magic in MAGICS:
        order, per = MAGICS[magic]
        yield from _classic(source, order, per)
    elif magic == PCAPNG:
        yield from _next_generation(source)
    else:
        raise DatasetError.at(path, "is no capture; expected pcap or pcapng")


def _classic(source: _Bytes, order: str, per: int) -> Iterator[Frame]:
    head = source.take(20, "its header")
    if not head:
        raise source.refuse("ends amid its header")
    link = struct.unpack(f"{order}HHiIII", head)[5] & 0x0FFFFFFF
    unpack, number = struct.Struct(f"{order}IIII").unpack, 0
    while True:
        number += 1
        head = source.take(16, f"packet {number}")
        if not head:
            return
        seconds, fraction, kept, length = unpack(head)
        if kept > LONGEST or fraction * per >= 1_000_000_000:
            raise source.refuse(f"packet {number}: {kept} bytes kept of {length}, fraction {fraction}")
        data = source.take(kept, f"packet {number}")
        if kept and not data:
            raise source.refuse(f"ends amid packet {number}")
        yield Frame(seconds * 1_000_000_000 + fraction * per, data, link)


def _next_generation(source: _Bytes) -> Iterator[Frame]:
    order, links = "<", list[tuple[int, float]]()
    kind_bytes, number = PCAPNG, 0
    while kind_bytes:
        number += 1
        what = f"block {number}"
        length_bytes = source.take(4, what)
        if kind_bytes == PCAPNG:
            mark = source.take(4, what)
            if mark not in {b"\x4d\x3c\x2b\x1a", b"\x1a\x2b\x3c\x4d"}:
                raise source.refuse(f"{what}: no byte order")
            order, links = ("<" if mark == b"\x4d\x3c\x2b\x1a" else ">"), []
        if len(length_bytes) < 4:
            raise source.refuse(f"ends amid {what}")
        (length,) = struct.unpack(f"{order}I", length_bytes)
        before = 12 if kind_bytes == PCAPNG else 8
        if not before + 4 <= length <= 4 * LONGEST or length % 4:
            raise source.refuse(f"{what}: {length} bytes")
        body = source.take(length - before, what)
        if len(body) < length - before:
            raise source.refuse(f"ends amid {what}")
        (kind,) = struct.unpack(f"{order}I", kind_bytes)
        try:
            frame = _block(kind, body[:-4], order, links)
        except struct.error:
            raise source.refuse(f"{what}: too short") from None
        if len(links) > MOST_INTERFACES:
            raise source.refuse(f"more than {MOST_INTERFACES} interfaces")
        if frame is not None:
            yield frame
        kind_bytes = source.take(4, f"block {number + 1}")


def _block(kind: int, body: bytes, order: str, links: list[tuple[int, float]]) -> Frame | None:
    """The frame in a block; an interface is added to its links. Raises `struct.error` for a block that is too short."""
    if kind == 1:
        (link,) = struct.unpack_from(f"{order}H", body)
        links.append((link, _resolution(body[8:], order)))
        return None
    if kind != 6:
        return None  # names, statistics, blocks without a time
    interface, high, low, kept, _ = struct.unpack_from(f"{order}IIIII", body)
    if interface >= len(links) or kept > len(body) - 20:
        raise struct.error
    link, per = links[interface]
    stamp = (high << 32) | low
    ns = stamp * round(per) if per >= 1 else int(stamp * per)
    return Frame(min(ns, (1 << 63) - 1), body[20 : 20 + kept], link)


def _resolution(options: bytes, order: str) -> float:
    """Nanoseconds of an interface's clock, by the option if_tsresol."""
    at = 0
    while at + 4 <= len(options):
        code, length = struct.unpack_from(f"{order}HH", options, at)
        if code == 0:
            break
        if code == 9 and length == 1 and at + 4 < len(options):
            value = options[at + 4]
            return 1e9 / float(2 ** (value & 0x7F) if value & 0x80 else 10**value)
        at += 4 + (length + 3) // 4 * 4
    return 1000.0


def _network(data: bytes, link: int) -> int | None:
    """Where the IP header of a frame begins; None for other frames."""
    if link == ETHERNET:
        at = 12
        while len(data) >= at + 4:
            kind = data[at] << 8 | data[at + 1]
            if kind not in _TAGS:
                return at + 2 if kind in {0x0800, 0x86DD} else None
            at += 4
        return None
    if link in RAW:
        return 0
    if link == SLL:
        return 16 if data[14:16] in {b"\x08\x00", b"\x86\xdd"} else None
    if link == SLL2:
        return 20 if data[:2] in {b"\x08\x00", b"\x86\xdd"} else None
    return 4 if link in {NULL, LOOP} else None


class _Ip(NamedTuple):
    """An IP header: protocol, where the payload begins, source and destination, length, and what identifies it."""

    protocol: int
    payload: int
    source: bytes
    target: bytes
    size: int
    identity: bytes


def _ip(data: bytes, at: int) -> _Ip | None:
    """The header that begins there; None where it is not whole, or none."""
    if len(data) < at + 20:
        return None
    if data[at] >> 4 == 4:
        header = (data[at] & 15) * 4
        size = data[at + 2] << 8 | data[at + 3]
        if header < 20 or len(data) < at + header or size < header:
            return None
        identity = data[at + 2 : at + 8] + data[at + 9 : at + 10]
        return _Ip(data[at + 9], at + header, data[at + 12 : at + 16], data[at + 16 : at + 20], size, identity)
    if data[at] >> 4 != 6 or len(data) < at + 40:
        return None
    size = 40 + (data[at + 4] << 8 | data[at + 5])
    return _Ip(data[at + 6], at + 40, data[at + 8 : at + 24], data[at + 24 : at + 40], size, data[at + 4 : at + 7])


def _tunnel(data: bytes, at: int) -> tuple[int, int, int, int] | None:
    """TEID, QFI, direction and where the inner packet begins, of a GTP-U message with a packet; None for others."""
    if len(data) < at + 8 or data[at] >> 4 != 3 or data[at + 1] != T_PDU:
        return None
    teid = int.from_bytes(data[at + 4 : at + 8], "big")
    if not data[at] & 7:
        return teid, -1, -1, at + 8
    qfi = up = -1
    kind, at = (data[at + 11] if data[at] & 4 and len(data) > at + 11 else 0), at + 12
    while kind:
        length = 4 * data[at] if at < len(data) else 0
        if not length or at + length > len(data):
            return None
        if kind == CONTAINER:
            up, qfi = (1 if data[at + 1] >> 4 else 0), data[at + 2] & 0x3F
        kind, at = data[at + length - 1], at + length
    return teid, qfi, up, at


def _add(packets: Packets, frame: Frame, keep: int) -> bool:
    """Add the packet of a frame, the inner packet of a tunnel; returns False for a frame without."""
    data = frame.data
    at = _network(data, frame.link)
    ip = None if at is None else _ip(data, at)
    if ip is None:
        return False
    tunnel, outer = None, (-1, -1)
    if ip.protocol == _UDP and data[ip.payload + 2 : ip.payload + 4] == GTPU_PORT.to_bytes(2, "big"):
        tunnel = _tunnel(data, ip.payload + 8)
        inner = None if tunnel is None else _ip(data, tunnel[3])
        if inner is None:
            return False
        known = packets.addresses
        outer = known.setdefault(ip.source, len(known)), known.setdefault(ip.target, len(known))
        ip = inner
    payload = data[ip.payload : ip.payload + keep]
    # A UPF, and a device that completes checksums, may change TTL, DSCP and the checksums of IP, UDP and TCP.
    plain = payload[:6] + payload[8:] if ip.protocol == _UDP else payload
    plain = payload[:16] + payload[18:] if ip.protocol == _TCP else plain
    plain = plain[: keep - 2]
    rest = plain[4:] if ip.protocol in {_UDP, _TCP} else plain
    known = packets.addresses
    packets.time_ns.append(frame.time_ns)
    packets.key.append(hash((ip.identity, ip.source, ip.target, plain)))
    packets.bare.append(hash((ip.identity, rest)))
    packets.size.append(ip.size)
    packets.tunnelled.append(tunnel is not None)
    packets.outer_source.append(outer[0])
    packets.outer_target.append(outer[1])
    packets.source.append(known.setdefault(ip.source, len(known)))
    packets.target.append(known.setdefault(ip.target, len(known)))
    packets.teid.append(-1 if tunnel is None else tunnel[0])
    packets.qfi.append(-1 if tunnel is None else tunnel[1])
    packets.up.append(-1 if tunnel is None else tunnel[2])
    return True
