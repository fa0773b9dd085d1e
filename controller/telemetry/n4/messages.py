"""PFCP messages (3GPP TS 29.244, clause 7) as far as they say which sessions a UPF has, and whose they are.

Rules are read to the depth that they have, three levels, and no deeper. What is not needed is passed over. An element
that may be absent and makes no sense counts as absent (clause 7.6), and so does a whole rule whose own elements are
such: that the receiver accepted the rest is known by its answer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from slicepilot.env.slices import SNssai

from . import elements as ie
from .elements import Malformed, Network, elements

# Table 7.3-1; the number of the answer is higher by 1.
ASSOCIATION_SETUP, ASSOCIATION_RELEASE = 5, 9
ESTABLISHMENT, MODIFICATION, DELETION, REPORT = 50, 52, 54, 56
REQUESTS = frozenset({ASSOCIATION_SETUP, ASSOCIATION_RELEASE, ESTABLISHMENT, MODIFICATION, DELETION, REPORT})
PFCP_PORT = 8805  # clause 6.4.1
VERSION, FOLLOW_ON, HAS_SEID = 1, 0x04, 0x01
DELETED_BY_UPF = 0x01  # PSDBU, clause 8.2.119
MOST_RULES = 256  # of a message: real messages have about ten
_HEADER = struct.Struct("!BBH")
T = TypeVar("T")


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
        ignored: elements and rules that made no sense.
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
    ignored: int = 0

    def optional(self, parse: Callable[[bytes], T], value: bytes) -> T | None:
        """What an element says that may be absent; None, and counted, where it makes no sense."""
        try:
            return parse(value)
        except Malformed:
            self.ignored += 1
            return None


def messages(datagram: bytes) -> list[Message]:
    """All messages of a datagram, which may bundle some, that are of `REQUESTS` or answer those; raises Malformed."""
    result, at, more = [], 0, True
    while more:
        if len(datagram) - at < _HEADER.size:
            raise Malformed("a message without a whole header")
        flags, kind, length = _HEADER.unpack_from(datagram, at)
        end = at + _HEADER.size + length
        if flags >> 5 != VERSION or end > len(datagram):
            raise Malformed("another version, or longer than the datagram")
        if kind in REQUESTS or kind - 1 in REQUESTS:
            result.append(_message(kind, bool(flags & HAS_SEID), datagram[at + _HEADER.size : end]))
        at, more = end, bool(flags & FOLLOW_ON)
    if at != len(datagram):
        raise Malformed("octets behind the last message")
    return result


def _message(kind: int, has_seid: bool, rest: bytes) -> Message:
    """``rest``: what comes behind the length (clause 7.2.2)."""
    head = 8 * has_seid + 4
    if len(rest) < head:
        raise Malformed("a message without a whole header")
    if has_seid != (kind >= ESTABLISHMENT):
        raise Malformed(f"a message of type {kind} {'with a' if has_seid else 'without'} SEID")
    seid = int.from_bytes(rest[:8], "big") if has_seid else None
    result = Message(kind, int.from_bytes(rest[head - 4 : head - 1], "big"), seid)
    seen: set[int] = set()
    for what, value in elements(rest[head:]):
        if what in _RULES:
            result.optional(partial(_read_rule, result, what), value)
        elif what in _SINGLE and what not in seen:  # of what must not be repeated the first counts (clause 7.6)
            seen.add(what)
            attribute, parse = _SINGLE[what]
            if what in _MANDATORY:
                setattr(result, attribute, parse(value))
            elif (read := result.optional(parse, value)) is not None:
                setattr(result, attribute, read)
    if (
        len(result.rules) + len(result.removed) + len(result.marks) + len(result.unmarked) + len(result.chosen)
        > MOST_RULES
    ):
        raise Malformed(f"more than {MOST_RULES} rules")
    return result


def _detection(message: Message, value: bytes) -> Detection:
    """A PDI (table 7.5.2.2-2), of which only the source interface is mandatory."""
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
                teid = message.optional(ie.f_teid, content)
            case ie.NETWORK_INSTANCE:
                instance = ie.name_of(content)
            case ie.UE_IP_ADDRESS:
                addresses += message.optional(ie.ue_addresses, content) or ()
            case ie.QFI if (flow := message.optional(_qfi, content)) is not None:
                flows.append(flow)
    if source is None:
        raise Malformed("a PDI without a source interface")
    return Detection(source == ie.ACCESS, teid, tuple(addresses), tuple(flows), instance)


def _qfi(value: bytes) -> int:
    return ie.number(value, 1) & 0x3F


def _dnn(value: bytes) -> str:
    name = ie.name_of(value)
    if name is None:
        raise Malformed("a DNN that is no name")
    return name


def _first(kind: int, value: bytes) -> bytes | None:
    return next((content for what, content in elements(value) if what == kind), None)


def _identity(kind: int, octets: int, value: bytes) -> int:
    result = _first(kind, value)
    if result is None:
        raise Malformed(f"a rule without element {kind}")
    return ie.number(result, octets)


def _read_rule(message: Message, kind: int, value: bytes) -> None:
    match kind:
        case ie.CREATE_PDR | ie.UPDATE_PDR:
            # Tables 7.5.2.2-1, 7.5.4.2-1: an update may say nothing of what it looks for.
            pdr, pdi = _identity(ie.PDR_ID, 2, value), _first(ie.PDI, value)
            if pdi is not None:
                message.rules[pdr] = _detection(message, pdi)
        case ie.CREATED_PDR | ie.UPDATED_PDR:  # clauses 7.5.3, 7.5.5
            pdr, teid = _identity(ie.PDR_ID, 2, value), _first(ie.F_TEID, value)
            addresses = [content for what, content in elements(value) if what == ie.UE_IP_ADDRESS]
            message.chosen[pdr] = Detection(
                teid=None if teid is None else message.optional(ie.f_teid, teid),
                addresses=tuple(
                    network for content in addresses for network in message.optional(ie.ue_addresses, content) or ()
                ),
            )
        case ie.CREATE_QER | ie.UPDATE_QER:
            qer, qfi = _identity(ie.QER_ID, 4, value), _first(ie.QFI, value)
            message.marks[qer] = None if qfi is None else message.optional(_qfi, qfi)
        case ie.REMOVE_PDR:
            message.removed.append(_identity(ie.PDR_ID, 2, value))
        case ie.REMOVE_QER:
            message.unmarked.append(_identity(ie.QER_ID, 4, value))


_RULES = frozenset(
    {
        *(ie.CREATE_PDR, ie.UPDATE_PDR, ie.CREATED_PDR, ie.UPDATED_PDR, ie.CREATE_QER, ie.UPDATE_QER),
        *(ie.REMOVE_PDR, ie.REMOVE_QER),
    }
)
_SINGLE: dict[int, tuple[str, Callable[[bytes], object]]] = {
    ie.NODE_ID: ("node", ie.node_id),
    ie.F_SEID: ("f_seid", ie.f_seid),
    ie.CAUSE: ("cause", lambda value: ie.number(value, 1)),
    ie.APN_DNN: ("dnn", _dnn),
    ie.S_NSSAI: ("s_nssai", ie.s_nssai),
    ie.SESSION_RETENTION: ("retains", lambda value: True),
    ie.REPORT_FLAGS: ("deleted", lambda value: bool(ie.number(value, 1) & DELETED_BY_UPF)),
}
"""Elements that come once, with the attribute of `Message` that they set."""
_MANDATORY = frozenset({ie.NODE_ID, ie.F_SEID, ie.CAUSE})
"""Elements without which an accepted message is useless (tables 7.4.4.1-1, 7.5.2-1, 7.5.3-1)."""
