"""PFCP messages in octets, put together here from TS 29.244, clauses 7 and 8."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address

CP, UP = IPv4Address("10.211.1.1"), IPv4Address("10.211.1.2")


def element(kind: int, value: bytes) -> bytes:
    return struct.pack("!HH", kind, len(value)) + value


def message(kind: int, sequence: int, *parts: bytes, seid: int | None = None, follow_on: bool = False) -> bytes:
    body = (b"" if seid is None else struct.pack("!Q", seid)) + struct.pack("!I", sequence << 8) + b"".join(parts)
    return struct.pack("!BBH", 0x20 | 4 * follow_on | (seid is not None), kind, len(body)) + body


def node(address: IPv4Address = CP) -> bytes:
    return element(60, b"\0" + address.packed)


def f_seid(seid: int, address: IPv4Address = CP) -> bytes:
    return element(57, struct.pack("!BQ", 2, seid) + address.packed)


def cause(number: int = 1) -> bytes:
    return element(19, bytes([number]))


def labels(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))


def dnn(name: str) -> bytes:
    return element(159, labels(name))


def s_nssai(sst: int, sd: str) -> bytes:
    return element(257, bytes([sst]) + bytes.fromhex(sd))


def f_teid(teid: int | None) -> bytes:
    """None: the UPF is to choose."""
    return element(21, b"\x05" if teid is None else struct.pack("!BI", 1, teid) + UP.packed)


def ue(address: str) -> bytes:
    return element(93, b"\x02" + IPv4Address(address).packed)


def pdi(*parts: bytes, source: int = 0) -> bytes:
    return element(2, element(20, bytes([source])) + b"".join(parts))


def pdr(number: int, *parts: bytes, kind: int = 1) -> bytes:
    return element(kind, element(56, struct.pack("!H", number)) + b"".join(parts))


def rules(teid: int | None, address: str, qfi: int = 9, instance: bytes = b"") -> bytes:
    """A PDR for each direction."""
    named = element(22, instance) if instance else b""
    up = pdi(f_teid(teid), ue(address), named, element(124, bytes([qfi])))
    return pdr(1, up) + pdr(2, pdi(ue(address), source=1))
