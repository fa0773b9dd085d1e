"""Frames of any kind for Hypothesis: mostly well-formed, with wrong headers and changed octets now and then."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

from hypothesis import strategies as st

UES = ("10.60.0.2", "10.60.3.4", "10.61.0.9", "192.0.2.1")
UES6 = ("2001:db8:60::2", "2001:db8:60:1::2", "2001:db8:61::2")
SINKS, SINKS6 = ("10.103.0.2", "10.103.0.3"), ("2001:db8:103::2",)
RAN, UPF, RAN6, UPF6 = "10.100.0.1", "10.100.0.2", "fd00::1", "fd00::2"
TEIDS = (0x10, 0x20, 0x30, 0xDEAD)
PORTS = (6000, 8080, 8081, 2152, 8805, 0)
LONGEST = 1500

Payloads = st.SearchStrategy[bytes]
rare = st.integers(0, 11).map(lambda number: number == 7)
"""Whether something is as it should not be."""


@st.composite
def said(draw: st.DrawFn, true: int, most: int) -> int:
    """What a field says of a length: the truth as a rule."""
    if not draw(rare):
        return true
    return draw(st.sampled_from([0, 1, 7, 8, 19, 20, 39, 40, true - 1, true + 1, true + 40, 1400, most])) & most


def filled(octets: int) -> bytes:
    """Some payload."""
    return bytes(number * 7 & 0xFF for number in range(octets))


sizes = st.one_of(st.integers(0, 80), st.integers(0, LONGEST))
anything = st.one_of(sizes.map(filled), st.binary(max_size=48))


@st.composite
def udp(draw: st.DrawFn, payloads: Payloads = anything, source: int | None = None, to: int | None = None) -> bytes:
    payload = draw(payloads)
    ports = [draw(st.sampled_from(PORTS)) if port is None else port for port in (source, to)]
    return struct.pack("!HHHH", *ports, draw(said(8 + len(payload), 0xFFFF)), 0) + payload


@st.composite
def tcp(draw: st.DrawFn) -> bytes:
    words = draw(st.one_of(st.integers(5, 8), st.integers(0, 15)))
    ports = draw(st.sampled_from(PORTS)), draw(st.sampled_from(PORTS))
    head = struct.pack("!HHIIBBHHH", *ports, 1, 1, words << 4, 0x18, 512, 0, 0)
    return head + bytes(4 * max(words - 5, 0)) + filled(draw(sizes))


@st.composite
def ipv4(
    draw: st.DrawFn, bodies: Payloads, sources: Sequence[str] = UES, sinks: Sequence[str] = SINKS, upper: int = 17
) -> bytes:
    body, words = draw(bodies), draw(st.one_of(st.just(0), st.integers(0, 10)))
    fragment = draw(st.sampled_from([*[0x4000] * 8, 0, 0x2000, 0x2000, 0x2001, 0x0064, 0x8000, 0x1FFF]))
    first = 0x45 + words if not draw(rare) else draw(st.integers(0, 255))
    head = struct.pack("!BBHHHBBH", first, 0, draw(said(20 + 4 * words + len(body), 0xFFFF)), 7, fragment, 64, upper, 0)
    addresses = (socket.inet_aton(draw(st.sampled_from(ends))) for ends in (sources, sinks))
    return head + b"".join(addresses) + bytes([1] * 4 * words) + body


def extension(kind: int, following: int, units: int, fragment: int) -> bytes:
    """An IPv6 extension header (RFC 8200, 4.3 to 4.6; RFC 4302, 2.2)."""
    if kind == 44:
        return struct.pack("!BBHI", following, 0, fragment, 99)
    size = 4 * (units + 2) if kind == 51 else 8 * (units + 1)
    return bytes([following, units]) + bytes(size - 2)


@st.composite
def ipv6(
    draw: st.DrawFn, bodies: Payloads, sources: Sequence[str] = UES6, sinks: Sequence[str] = SINKS6, upper: int = 17
) -> bytes:
    body = draw(bodies)
    chain = draw(
        st.one_of(
            st.just([]),
            st.just([]),
            st.just([44]),
            st.lists(st.sampled_from([0, 43, 44, 51, 60, 50, 59]), min_size=1, max_size=4),
        )
    )
    kinds = [*chain, upper]
    fragment = draw(st.sampled_from([0, 0, 1, 1, 8, 9, 0x500, 2]))
    for kind, following in zip(reversed(chain), reversed(kinds[1:]), strict=True):
        body = extension(kind, following, draw(st.integers(0, 3)), fragment) + body
    first = 0x60 if not draw(rare) else draw(st.integers(0, 255))
    head = struct.pack("!BBHHBB", first, 0, 0, draw(said(len(body), 0xFFFF)), kinds[0], 64)
    addresses = (socket.inet_pton(socket.AF_INET6, draw(st.sampled_from(ends))) for ends in (sources, sinks))
    return head + b"".join(addresses) + body


@st.composite
def inner(draw: st.DrawFn) -> bytes:
    """What a UE sends."""
    upper = draw(st.sampled_from([17, 17, 6, 6, 1, 47, 132, 58]))
    bodies = {17: udp(), 6: tcp()}.get(upper, anything)
    return draw(st.one_of(ipv4(bodies, upper=upper), ipv6(bodies, upper=upper), st.binary(max_size=60)))


@st.composite
def gtpu(draw: st.DrawFn, inners: Payloads | None = None) -> bytes:
    """TS 29.281, 5.1 and 5.2.1: any flags, any chain."""
    content = draw(inner() if inners is None else inners)
    kinds = [0x85, 0x85, 0x85, 0x40, 0x20, 0x03, 0x82, 0xC0, 0x84, 1, 0xFF]
    chain = draw(
        st.one_of(
            st.just([0x85]), st.lists(st.sampled_from(kinds), max_size=3), st.lists(st.sampled_from(kinds), max_size=8)
        )
    )
    flags = 0x30 | (4 if chain else 0) | draw(st.sampled_from([0, 0, 2, 1, 3, 8]))
    if draw(rare):
        flags = draw(st.integers(0, 255))
    optional = b""
    if flags & 7:
        optional = struct.pack("!HBB", 5, 6, chain[0] if chain else draw(st.sampled_from([0, 0x85])))
        for number, _ in enumerate(chain):
            words = draw(st.sampled_from([1, 1, 1, 2, 3, 8, 40]))
            head = bytes([draw(st.sampled_from([0x10, 0x10, 0x00, 0x1F, 0x0C, 0x50])), draw(st.integers(0, 255))])
            following = chain[number + 1] if number + 1 < len(chain) else 0
            said_words = words if not draw(rare) else draw(st.sampled_from([0, words + 1, 255]))
            optional += bytes([said_words]) + head + bytes(4 * words - 4) + bytes([following])
    kind = 255 if not draw(rare) else draw(st.sampled_from([1, 2, 26, 31, 253, 254, 0]))
    length = draw(said(len(optional) + len(content), 0xFFFF))
    return struct.pack("!BBHI", flags, kind, length, draw(st.sampled_from(TEIDS))) + optional + content


@st.composite
def pfcp(draw: st.DrawFn) -> bytes:
    """The header of TS 29.244, 7.2.2, and something behind it."""
    flags = (
        draw(st.sampled_from([0x20, 0x21, 0x21, 0x21, 0x24, 0x25, 0x23]))
        if not draw(rare)
        else draw(st.integers(0, 255))
    )
    kind = draw(st.one_of(st.sampled_from([1, 2, 5, 6, 50, 51, 52, 53, 54, 55, 56, 57]), st.integers(0, 255)))
    rest = draw(st.binary(min_size=12, max_size=12)) + filled(draw(sizes))
    return struct.pack("!BBH", flags, kind, draw(said(len(rest), 0xFFFF))) + rest


@st.composite
def frame(draw: st.DrawFn, packets: Payloads) -> bytes:
    """A packet in a frame, tagged or not, padded, cut off, some of its octets changed."""
    packet = draw(packets)
    kind = 0x0800 if packet[:1] and packet[0] >> 4 == 4 else 0x86DD
    if draw(rare):
        kind = draw(st.sampled_from([0x0800, 0x86DD, 0x0806, 0x8847, 46]))
    tags = draw(
        st.sampled_from([b""] * 8 + [b"\x81\x00\x00\x05", b"\x88\xa8\x00\x05", b"\x81\x00\x00\x05\x81\x00\x00\x06"])
    )
    octets = bytearray(bytes(12) + tags + struct.pack("!H", kind) + packet)
    octets += bytes(draw(st.sampled_from([0, 0, 0, 0, 1, 4, 46])))
    for at, new in draw(st.lists(st.tuples(st.integers(0, 159), st.integers(0, 255)), max_size=3)):
        if draw(st.booleans()) and 12 <= at < len(octets):
            octets[at] = new
    if draw(rare):
        del octets[draw(st.integers(0, len(octets))) :]
    return bytes(octets[: 14 + LONGEST])


def outer(payloads: Payloads, source: int | None, to: int) -> st.SearchStrategy[bytes]:
    """A datagram between RAN and UPF."""
    content = udp(payloads, source, to)
    return st.one_of(ipv4(content, (RAN,), (UPF,)), ipv6(content, (RAN6,), (UPF6,)))


def n3() -> Payloads:
    """What arrives where GTP-U does."""
    return frame(outer(gtpu(), 2152, 2152))
