"""Information elements of PFCP (3GPP TS 29.244, clause 8), as far as they say whose packets are whose.

What is read comes from a network: every length is checked against what is there, and all that does not fit is
`Malformed`. An element that is longer than known here is read as far as it is known: later releases append to them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network

from slicepilot.env.slices import SNssai

Network = IPv4Network | IPv6Network

# Table 8.1.2-1.
CREATE_PDR, PDI, CREATE_QER, CREATED_PDR, UPDATE_PDR = 1, 2, 7, 8, 9
UPDATE_QER, REMOVE_PDR, REMOVE_QER, CAUSE, SOURCE_INTERFACE = 14, 15, 18, 19, 20
F_TEID, NETWORK_INSTANCE, PDR_ID, F_SEID, NODE_ID = 21, 22, 56, 57, 60
UE_IP_ADDRESS, QER_ID, QFI, APN_DNN, REPORT_FLAGS = 93, 109, 124, 159, 161
SESSION_RETENTION, UPDATED_PDR, S_NSSAI = 183, 256, 257

ACCESS = 0
CHOOSE = 0  # in place of a TEID, which is never 0 in a PDI: the UPF is to choose a TEID
NO_SD = "FFFFFF"
UE_PREFIX_BITS, LEAST_PREFIX_BITS = 64, 32
MOST_LABEL, MOST_NAME = 63, 100  # TS 23.003, clause 9.1: octets
_HEADER = struct.Struct("!HH")


class Malformed(ValueError):
    """Octets that are no message, or a message that makes no sense."""


def elements(octets: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each element in a row (clause 8.1.1); raises Malformed. Vendors' types are those from 32768."""
    at, end = 0, len(octets)
    while at < end:
        if end - at < _HEADER.size:
            raise Malformed("an element without a whole header")
        kind, length = _HEADER.unpack_from(octets, at)
        at += _HEADER.size
        if length > end - at:
            raise Malformed(f"element {kind} is longer than what it is in")
        yield kind, octets[at : at + length]
        at += length


def number(value: bytes, octets: int) -> int:
    """A number of so many octets at the beginning of an element."""
    return int.from_bytes(_taken(value, 0, octets), "big")


def node_id(value: bytes) -> bytes:
    """Who a function is (clause 8.2.38): its type and address or name, to compare."""
    kind = number(value, 1) & 0x0F
    if kind > 2:
        raise Malformed(f"node ID of type {kind}")
    name = value[1:].lower() if kind == 2 else _taken(value, 1, 4 if kind == 0 else 16)
    if not name:
        raise Malformed("a node ID without a name")
    return bytes([kind]) + name


def f_seid(value: bytes) -> int:
    """The identifier in an F-SEID (clause 8.2.37)."""
    flags = number(value, 1)
    if not flags & 3:
        raise Malformed("an F-SEID without an address")
    _taken(value, 9, 4 * (flags >> 1 & 1) + 16 * (flags & 1))
    return int.from_bytes(_taken(value, 1, 8), "big")


def f_teid(value: bytes) -> int:
    """The identifier in an F-TEID (clause 8.2.3), or `CHOOSE`."""
    flags = number(value, 1)
    if not flags & 3:
        raise Malformed("an F-TEID without an address")
    if flags & 4:
        return CHOOSE
    teid = int.from_bytes(_taken(value, 1, 4), "big")
    _taken(value, 5, 4 * (flags & 1) + 16 * (flags >> 1 & 1))
    if teid == CHOOSE:
        raise Malformed("TEID 0")
    return teid


def ue_addresses(value: bytes) -> tuple[Network, ...]:
    """What a UE owns by a UE IP Address (clause 8.2.62): an IPv4 address, an IPv6 prefix of 64 bits or what is
    delegated to it. Empty where the UPF is to choose."""
    flags, at = number(value, 1), 1
    result: list[Network] = []
    if flags & 2:
        result.append(IPv4Network((_taken(value, at, 4), 32)))
        at += 4
    if flags & 1:
        address, bits = _taken(value, at, 16), UE_PREFIX_BITS
        at += 16
        if flags & 8:
            bits -= _taken(value, at, 1)[0]
            at += 1
        if flags & 64:
            bits = min(bits, _taken(value, at, 1)[0])
        if bits < LEAST_PREFIX_BITS:
            raise Malformed(f"a UE's prefix of {bits} bits")
        result.append(IPv6Network((address, bits), strict=False))
    return tuple(result)


def s_nssai(value: bytes) -> SNssai:
    """An S-NSSAI: SST, then SD (TS 23.003, clause 28.4.2)."""
    octets = _taken(value, 0, 4)
    differentiator = octets[1:].hex().upper()
    return SNssai(octets[0], None if differentiator == NO_SD else differentiator)


def name_of(value: bytes) -> str | None:
    """A DNN (clause 8.2.117) or Network Instance (clause 8.2.4) in small letters, without the operator's part.

    Both are labels with their lengths (TS 23.003, clause 9.1); a Network Instance may be plain text as well. None
    where it is neither: it may be anything then, and is nobody's DNN.
    """
    if not 0 < len(value) <= MOST_NAME:
        return None
    text = ".".join(_labels(value) or ()) or _plain(value)
    return None if text is None else without_operator(text.lower())


def without_operator(name: str) -> str:
    """A DNN's network identifier: without ``mncNNN.mccNNN.gprs`` behind it (TS 23.003, clause 9.1.2)."""
    labels = name.split(".")
    operator = len(labels) > 3 and labels[-1] == "gprs" and labels[-2][:3] == "mcc" and labels[-3][:3] == "mnc"
    return ".".join(labels[:-3] if operator else labels)


def _labels(value: bytes) -> list[str] | None:
    result, at = [], 0
    while at < len(value):
        length = value[at]
        label = _plain(value[at + 1 : at + 1 + length])
        if not 0 < length <= MOST_LABEL or at + 1 + length > len(value) or label is None:
            return None
        result.append(label)
        at += 1 + length
    return result


def _plain(value: bytes) -> str | None:
    return value.decode("ascii") if all(0x21 <= octet <= 0x7E for octet in value) and value else None


def _taken(value: bytes, at: int, octets: int) -> bytes:
    part = value[at : at + octets]
    if len(part) < octets:
        raise Malformed("an element that is too short")
    return part
