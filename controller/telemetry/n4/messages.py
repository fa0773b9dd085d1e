"""PFCP messages (3GPP TS 29.244, clause 7) as far as they tell which sessions a UPF has, and whose they are.

Rules are read to the depth that they have, three levels, and no deeper. What is not needed is passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from slicepilot.env.slices import SNssai

from . import elements as ie
from .elements import Malformed, Network, elements

# Table 7.3-1; the number of the answer is one higher.
ASSOCIATION_SETUP, ASSOCIATION_RELEASE = 5, 9
ESTABLISHMENT, MODIFICATION, DELETION, REPORT = 50, 52, 54, 56
REQUESTS = frozenset({ASSOCIATION_SETUP, ASSOCIATION_RELEASE, ESTABLISHMENT, MODIFICATION, DELETION, REPORT})
PFCP_PORT = 8805  # clause 6.4.1
VERSION, FOLLOW_ON, HAS_SEID = 1, 0x04, 0x01
DELETED_BY_UPF = 0x01  # PSDBU, clause 8.2.119
MOST_RULES = 256  # of a message: real ones have some ten, and a datagram has no room for many more
_HEADER = struct.Struct("!BBH")


@dataclass(frozen=True, slots=True)
class Detection:
    """What a PDR looks for.

    Attributes:
        access: in packets from the radio's side.
        teid: of the UPF's end of the tunnel, or `elements.CHOOSE`; None where there is none.
        addresses: of the UE.
        flows: QFIs.
        instance: Network Instance.
    """

    access: bool = False
    teid: int | None = None
    addresses: tuple[Network, ...] = ()
    flows: tuple[int, ...] = ()
    instance: str | None = None


@dataclass(slots=True)
class Message:
    """One message.

    Attributes:
        kind: its type; sequence: its number.
        seid: of the session that it is about, at the receiver.
        node: identity of who has sent it; f_seid: the session's at the sender.
        cause: of an answer.
        dnn, s_nssai: of the session.
        rules: PDRs that are created, or are looked at in another way from now on; removed: those that are not any more.
        marks: QFI by QER, None where it has none; unmarked: QERs that are removed.
        chosen: by PDR, what the UPF has chosen.
        retains: says that sessions outlive a new association; deleted: by the UPF itself.
    """

    kind: int
    sequence: int
    seid: int | None
    node: bytes | None = None
    f_seid: int | None = None
    cause: int | None = None
    dnn: str | None = None
    s_nssai: SNssai | None = None
    rules: dict[int, Detection] = field(default_factory=dict)
    removed: list[int] = field(default_factory=list)
    marks: dict[int, int | None] = field(default_factory=dict)
    unmarked: list[int] = field(default_factory=list)
    chosen: dict[int, Detection] = field(default_factory=dict)
    retains: bool = False
    deleted: bool = False


def messages(datagram: bytes) -> list[Message]:
    """All messages of a datagram, which may bundle some, that are of `REQUESTS` or answer those; raises Malformed."""
    found, at, more = [], 0, True
    while more:
        if len(datagram) - at < _HEADER.size:
            raise Malformed("a message without a whole header")
        flags, kind, length = _HEADER.unpack_from(datagram, at)
        end = at + _HEADER.size + length
        if flags >> 5 != VERSION or end > len(datagram):
            raise Malformed("another version, or longer than the datagram")
        if kind in REQUESTS or kind - 1 in REQUESTS:
            found.append(_message(kind, bool(flags & HAS_SEID), datagram[at + _HEADER.size : end]))
        at, more = end, bool(flags & FOLLOW_ON)
    if at != len(datagram):
        raise Malformed("octets behind the last message")
    return found


def _message(kind: int, has_seid: bool, rest: bytes) -> Message:
    """``rest``: what comes behind the length (clause 7.2.2)."""
    head = 8 * has_seid + 4
    if len(rest) < head:
        raise Malformed("a message without a whole header")
    if has_seid != (kind >= ESTABLISHMENT):
        raise Malformed(f"a message of type {kind} with a SEID, or without one")
    seid = int.from_bytes(rest[:8], "big") if has_seid else None
    found = Message(kind, int.from_bytes(rest[head - 4 : head - 1], "big"), seid)
    seen: set[int] = set()
    for what, value in elements(rest[head:]):
        if what in _RULES:
            _RULES[what](found, value)
        elif what in _SINGLE and what not in seen:  # of what must not be repeated the first counts (clause 7.6)
            seen.add(what)
            _SINGLE[what](found, value)
    if len(found.rules) + len(found.removed) + len(found.marks) + len(found.unmarked) + len(found.chosen) > MOST_RULES:
        raise Malformed(f"more than {MOST_RULES} rules")
    return found


def _detection(value: bytes) -> Detection:
    """A PDI (table 7.5.2.2-2)."""
    source: int | None = None
    teid: int | None = None
    instance: str | None = None
    addresses: list[Network] = []
    flows: list[int] = []
    for what, content in elements(value):
        match what:
            case ie.SOURCE_INTERFACE:
                source = ie.number(content, 1) & 0x0F
            case ie.F_TEID:
                teid = ie.f_teid(content)
            case ie.NETWORK_INSTANCE:
                instance = ie.name_of(content)
            case ie.UE_IP_ADDRESS:
                addresses += ie.ue_addresses(content)
            case ie.QFI:
                flows.append(ie.number(content, 1) & 0x3F)
    if source is None:
        raise Malformed("a PDI without a source interface")
    return Detection(source == ie.ACCESS, teid, tuple(addresses), tuple(flows), instance)


def _first(kind: int, value: bytes) -> bytes | None:
    return next((content for what, content in elements(value) if what == kind), None)


def _identity(kind: int, octets: int, value: bytes) -> int:
    found = _first(kind, value)
    if found is None:
        raise Malformed(f"a rule without element {kind}")
    return ie.number(found, octets)


def _pdr(message: Message, value: bytes) -> None:
    """Create PDR or Update PDR (tables 7.5.2.2-1, 7.5.4.2-1): the latter may say nothing of what it looks for."""
    pdr, pdi = _identity(ie.PDR_ID, 2, value), _first(ie.PDI, value)
    if pdi is not None:
        message.rules[pdr] = _detection(pdi)


def _chosen(message: Message, value: bytes) -> None:
    """Created PDR or Updated PDR (clauses 7.5.3, 7.5.5)."""
    teid = _first(ie.F_TEID, value)
    addresses: Iterable[bytes] = (content for what, content in elements(value) if what == ie.UE_IP_ADDRESS)
    message.chosen[_identity(ie.PDR_ID, 2, value)] = Detection(
        teid=None if teid is None else ie.f_teid(teid),
        addresses=tuple(network for content in addresses for network in ie.ue_addresses(content)),
    )


def _qer(message: Message, value: bytes) -> None:
    qfi = _first(ie.QFI, value)
    message.marks[_identity(ie.QER_ID, 4, value)] = None if qfi is None else ie.number(qfi, 1) & 0x3F


def _removed_pdr(message: Message, value: bytes) -> None:
    message.removed.append(_identity(ie.PDR_ID, 2, value))


def _removed_qer(message: Message, value: bytes) -> None:
    message.unmarked.append(_identity(ie.QER_ID, 4, value))


_RULES = {
    ie.CREATE_PDR: _pdr,
    ie.UPDATE_PDR: _pdr,
    ie.CREATED_PDR: _chosen,
    ie.UPDATED_PDR: _chosen,
    ie.CREATE_QER: _qer,
    ie.UPDATE_QER: _qer,
    ie.REMOVE_PDR: _removed_pdr,
    ie.REMOVE_QER: _removed_qer,
}


def _node(message: Message, value: bytes) -> None:
    message.node = ie.node_id(value)


def _f_seid(message: Message, value: bytes) -> None:
    message.f_seid = ie.f_seid(value)


def _cause(message: Message, value: bytes) -> None:
    message.cause = ie.number(value, 1)


def _dnn(message: Message, value: bytes) -> None:
    message.dnn = ie.name_of(value)


def _s_nssai(message: Message, value: bytes) -> None:
    message.s_nssai = ie.s_nssai(value)


def _retention(message: Message, value: bytes) -> None:
    message.retains = True


def _flags(message: Message, value: bytes) -> None:
    message.deleted = bool(ie.number(value, 1) & DELETED_BY_UPF)


_SINGLE = {
    ie.NODE_ID: _node,
    ie.F_SEID: _f_seid,
    ie.CAUSE: _cause,
    ie.APN_DNN: _dnn,
    ie.S_NSSAI: _s_nssai,
    ie.SESSION_RETENTION: _retention,
    ie.REPORT_FLAGS: _flags,
}
