"""Which PFCP sessions UPFs have: the state that follows from requests and the answers to them.

A request changes nothing: what counts is that it was accepted, which the receiver of the request says. So somebody who
forges requests to a UPF can have no session learned that the UPF has not set up.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from slicepilot.env.slices import SNssai

from .elements import CHOOSE, Malformed, Network
from .messages import (
    ASSOCIATION_RELEASE,
    ASSOCIATION_SETUP,
    DELETION,
    ESTABLISHMENT,
    MODIFICATION,
    MOST_RULES,
    PFCP_PORT,
    REPORT,
    REQUESTS,
    Detection,
    Message,
    messages,
)

ACCEPTED, MORE_REPORTS, NO_SUCH_SESSION = 1, 2, 65  # causes, TS 29.244, table 8.2.1-1
GIVE_UP_NS = 30 * 10**9  # three times what a sender tries with usual timers
MOST_OPEN, MOST_SESSIONS = 4096, 16384

Key = tuple[int, int]
"""A UPF, and its SEID of the session."""


@dataclass(frozen=True, slots=True)
class Datagram:
    """One datagram from or to a UPF.

    Attributes:
        upf: which; sent: by it.
        own, other: addresses of the UPF and its peer; own_port, other_port: their ports.
        seen_ns: since the machine was started (CLOCK_BOOTTIME).
        unread, lost: datagrams until now that could not be read, or that were lost because the buffer was full.
        octets: of the datagram.
    """

    upf: int
    sent: bool
    own: bytes
    other: bytes
    own_port: int
    other_port: int
    seen_ns: int
    octets: bytes
    unread: int = 0
    lost: int = 0


@dataclass(slots=True)
class Session:
    """A session of a UPF.

    Attributes:
        node: identity of the control-plane function that has set it up.
        since_ns: when; see `Datagram`.
        dnn, s_nssai: None where they were not given.
        rules: by PDR.
        marks: QFI by QER, None where it has none.
    """

    node: bytes
    since_ns: int
    dnn: str | None
    s_nssai: SNssai | None
    rules: dict[int, Detection] = field(default_factory=dict)
    marks: dict[int, int | None] = field(default_factory=dict)

    @property
    def dnns(self) -> set[str]:
        """Its DNN; where none was given its Network Instances, which many control planes call by the DNN."""
        if self.dnn is not None:
            return {self.dnn}
        return {rule.instance for rule in self.rules.values() if rule.instance is not None}

    @property
    def teids(self) -> set[int]:
        """The UPF's ends of its tunnels from the radio's side."""
        return {rule.teid for rule in self.rules.values() if rule.access and rule.teid}

    @property
    def addresses(self) -> set[Network]:
        return {address for rule in self.rules.values() for address in rule.addresses}

    @property
    def flows(self) -> set[int]:
        looked_for = {flow for rule in self.rules.values() for flow in rule.flows}
        return looked_for | {flow for flow in self.marks.values() if flow is not None}

    def change(self, request: Message, answer: Message) -> None:
        """What an establishment or modification that was accepted has made of it."""
        for pdr in request.removed:
            self.rules.pop(pdr, None)
        for qer in request.unmarked:
            self.marks.pop(qer, None)
        for pdr, rule in request.rules.items():
            before = self.rules.get(pdr)
            kept = before.teid if rule.teid == CHOOSE and before is not None else rule.teid
            self.rules[pdr] = replace(rule, teid=kept)
        for pdr, chosen in answer.chosen.items():
            if (known := self.rules.get(pdr)) is not None:
                addresses = tuple(dict.fromkeys(known.addresses + chosen.addresses))
                self.rules[pdr] = replace(known, teid=chosen.teid or known.teid, addresses=addresses)
        self.marks.update(request.marks)


class _State(Enum):
    OPEN = auto()
    ANSWERED = auto()
    CONTESTED = auto()  # two that differ came under the same number: it cannot be said which of them was accepted


@dataclass(slots=True)
class _Request:
    message: Message
    since_ns: int
    state: _State = _State.OPEN


_Exchange = tuple[int, bool, bytes, bytes, int, int, int]


def _exchange_of(datagram: Datagram, asks_upf: bool, kind: int, sequence: int) -> _Exchange | None:
    """What a request and its answer have in common; None where the server's port is not PFCP's."""
    ports = (datagram.own_port, datagram.other_port)
    server_port, client_port = ports if asks_upf else ports[::-1]
    if server_port != PFCP_PORT:
        return None
    return datagram.upf, asks_upf, datagram.own, datagram.other, client_port, kind, sequence


class Sessions:
    """What UPFs have accepted and not ended.

    Args:
        wanted: whether a session is anybody's; others are not kept.
        most: sessions that are kept.

    Attributes:
        over: how many sessions were left out for ``most``, or for more rules than any has.
        senseless: by UPF, datagrams and single elements that made no sense, since its association was set up.
        unexplained: by UPF, sessions and changes that it has accepted without that their requests could be read, since
            its association was set up.
        associated: by UPF, the datagram with which that was accepted last.
    """

    def __init__(self, wanted: Callable[[int, Session], bool], most: int = MOST_SESSIONS) -> None:
        self._wanted, self._most = wanted, most
        self._requests: dict[_Exchange, _Request] = {}
        self._sessions: dict[Key, Session] = {}
        self._of_node: dict[tuple[int, bytes], dict[Key, Session]] = {}
        self._changed: deque[Key] = deque()
        self._leaving: list[dict[Key, Session]] = []
        self.over = 0
        self.unexplained: Counter[int] = Counter()
        self.senseless: Counter[int] = Counter()
        self.associated: dict[int, Datagram] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: Key) -> Session | None:
        """The session, None where there is none any more."""
        return self._sessions.get(key)

    def next_change(self) -> Key | None:
        """A session that has come, changed or gone; None where all were reported. Ask before the next `take`."""
        while self._leaving:
            if not self._leaving[-1]:
                self._leaving.pop()
                continue
            key, session = self._leaving[-1].popitem()
            if self._sessions.get(key) is session:
                del self._sessions[key]
                return key
        return self._changed.popleft() if self._changed else None

    def restarted(self, upf: int, since_ns: int) -> None:
        """A UPF's process has begun anew: what it had before that it has no more."""
        for node, there in self._of_node.items():
            if node[0] == upf:
                old = {key: item for key, item in there.items() if item.since_ns < since_ns}
                for key in old:
                    del there[key]
                self._leaving.append(old)

    def take(self, datagram: Datagram) -> None:
        """Read a datagram; what makes no sense is counted and ignored."""
        try:
            result = messages(datagram.octets)
        except Malformed:
            self.senseless[datagram.upf] += 1
            return
        for message in result:
            self.senseless[datagram.upf] += message.ignored
            if message.kind in REQUESTS:
                self._request(datagram, message)
            else:
                self._answer(datagram, message)

    def _request(self, datagram: Datagram, message: Message) -> None:
        asks_upf = not datagram.sent
        exchange = _exchange_of(datagram, asks_upf, message.kind, message.sequence)
        fits = message.kind < ESTABLISHMENT or asks_upf == (message.kind != REPORT)
        if exchange is None or not fits:
            return
        self._expire(datagram.seen_ns)
        known = self._requests.get(exchange)
        if known is None or (known.state is _State.ANSWERED and known.message != message):
            self._requests.pop(exchange, None)
            self._requests[exchange] = _Request(message, datagram.seen_ns)
        elif known.state is _State.OPEN and known.message != message:
            known.state = _State.CONTESTED

    def _expire(self, now_ns: int) -> None:
        """Drop requests that are too old, which come first, or too many."""
        while self._requests:
            exchange, oldest = next(iter(self._requests.items()))
            if len(self._requests) < MOST_OPEN and now_ns - oldest.since_ns < GIVE_UP_NS:
                return
            del self._requests[exchange]

    def _answer(self, datagram: Datagram, message: Message) -> None:
        asks_upf = datagram.sent
        exchange = _exchange_of(datagram, asks_upf, message.kind - 1, message.sequence)
        if exchange is None:
            return
        request = self._requests.get(exchange)
        if request is None or request.state is _State.CONTESTED:
            if asks_upf and message.kind - 1 in {ESTABLISHMENT, MODIFICATION} and message.cause == ACCEPTED:
                self.unexplained[datagram.upf] += 1
        elif request.state is _State.OPEN:  # it may be answered a second time where it was sent again
            request.state = _State.ANSWERED
            self._settle(datagram, asks_upf, request.message, message)

    def _settle(self, datagram: Datagram, asks_upf: bool, request: Message, answer: Message) -> None:
        accepted = answer.cause == ACCEPTED
        match request.kind:
            case kind if kind in {ASSOCIATION_SETUP, ASSOCIATION_RELEASE}:
                node = request.node if asks_upf else answer.node
                if accepted and node is not None and not request.retains:
                    self._forget(datagram, node)
                    if kind == ASSOCIATION_SETUP:
                        self.associated[datagram.upf] = datagram
                        del self.unexplained[datagram.upf], self.senseless[datagram.upf]
            case kind if kind == ESTABLISHMENT:
                if accepted:
                    self._establish(datagram, request, answer)
            case kind if kind == MODIFICATION and request.seid is not None:
                if accepted or answer.cause == MORE_REPORTS:
                    self._modify((datagram.upf, request.seid), request, answer)
                elif answer.cause == NO_SUCH_SESSION:
                    self._drop((datagram.upf, request.seid))
            case kind if kind == DELETION and request.seid is not None:
                if answer.cause in {ACCEPTED, MORE_REPORTS, NO_SUCH_SESSION}:
                    self._drop((datagram.upf, request.seid))
            case kind if kind == REPORT and answer.seid is not None:
                if request.deleted and accepted:
                    self._drop((datagram.upf, answer.seid))

    def _forget(self, datagram: Datagram, node: bytes) -> None:
        """All of a control-plane function: a new association is without sessions (clauses 6.2.6, 6.2.8).

        Its earlier requests go, too: it may count from the beginning, and send the same under the same number.
        """
        self._leaving.append(self._of_node.pop((datagram.upf, node), {}))
        past = [item for item in self._requests if (item[0], item[3]) == (datagram.upf, datagram.other)]
        for exchange in past:
            if self._requests[exchange].state is _State.ANSWERED:
                del self._requests[exchange]

    def _establish(self, datagram: Datagram, request: Message, answer: Message) -> None:
        if request.node is None or answer.f_seid is None:
            self.unexplained[datagram.upf] += 1
            return
        key = (datagram.upf, answer.f_seid)
        self._drop(key)
        session = Session(request.node, datagram.seen_ns, request.dnn, request.s_nssai)
        session.change(request, answer)
        if not self._wanted(datagram.upf, session):
            return
        if len(self._sessions) >= self._most:
            self.over += 1
            return
        self._sessions[key] = session
        self._of_node.setdefault((datagram.upf, request.node), {})[key] = session
        self._changed.append(key)

    def _modify(self, key: Key, request: Message, answer: Message) -> None:
        session = self._sessions.get(key)
        tells = request.rules or request.removed or request.marks or request.unmarked or answer.chosen
        if session is None or not tells:  # a handover, for instance, is another tunnel of the radio's
            return
        session.change(request, answer)
        if len(session.rules) + len(session.marks) > MOST_RULES:
            self.over += 1
            self._drop(key)
        self._changed.append(key)

    def _drop(self, key: Key) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            self._of_node.get((key[0], session.node), {}).pop(key, None)
            self._changed.append(key)
