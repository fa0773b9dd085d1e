"""The sessions of a UPF follow from the requests that it was seen to accept, and from nothing else."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.controller.telemetry.n4.sessions import GIVE_UP_NS, MOST_OPEN, Datagram, Session, Sessions

from .octets import CP, UP, cause, dnn, element, f_seid, f_teid, message, node, pdi, pdr, rules, ue

SECOND = 10**9
RECOVERY = element(96, bytes(4))
OTHER = IPv4Address("10.211.1.99")


class N4:
    """A UPF's N4, and who is at its other end."""

    def __init__(self, most: int = 100) -> None:
        self.sessions = Sessions(lambda _, session: session.dnn != "unknown", most)
        self.now_ns = SECOND

    def hear(self, octets: bytes, *, sent: bool, other: IPv4Address = CP, peer_port: int = 8805) -> None:
        """To the UPF or from it; ``peer_port`` is the peer's."""
        self.sessions.take(Datagram(0, sent, UP.packed, other.packed, 8805, peer_port, self.now_ns, octets))

    def changed(self) -> list[tuple[int, int]]:
        """Which sessions have changed."""
        result = []
        while (key := self.sessions.next_change()) is not None:
            result.append(key)
        return result

    def associate(self, sequence: int = 1, address: IPv4Address = CP, number: int = 1, *more: bytes) -> None:
        self.hear(message(5, sequence, node(address), RECOVERY, *more), sent=False, other=address)
        self.hear(message(6, sequence, node(UP), cause(number), RECOVERY), sent=True, other=address)

    def establish(
        self, seid: int = 0x99, sequence: int = 2, teid: int = 17, name: str = "a", address: IPv4Address = CP
    ) -> None:
        request = message(50, sequence, node(address), f_seid(5), rules(teid, "10.61.1.2"), dnn(name), seid=0)
        self.hear(request, sent=False, other=address)
        self.hear(message(51, sequence, node(UP), cause(), f_seid(seid, UP), seid=5), sent=True, other=address)

    def accept(self, *parts: bytes, created: bytes = b"") -> Session:
        """Establish a session of these elements."""
        self.hear(message(50, 2, node(), f_seid(5), *parts, seid=0), sent=False)
        self.hear(message(51, 2, node(UP), cause(), f_seid(0x99, UP), created, seid=5), sent=True)
        session = self.get()
        assert session is not None
        return session

    def get(self, seid: int = 0x99) -> Session | None:
        self.changed()
        return self.sessions.get((0, seid))


@pytest.fixture(name="n4")
def _n4() -> N4:
    return N4()


def test_a_session_is_there_once_it_was_accepted(n4: N4) -> None:
    n4.hear(message(50, 2, node(), f_seid(5), rules(17, "10.61.1.2"), dnn("a"), seid=0), sent=False)
    assert not len(n4.sessions)
    n4.hear(message(51, 2, node(UP), cause(), f_seid(0x99, UP), seid=5), sent=True)
    assert n4.changed() == [(0, 0x99)]
    session = n4.sessions.get((0, 0x99))
    assert session is not None
    assert (session.teids, session.addresses, session.flows) == ({17}, {ip_network("10.61.1.2/32")}, {9})
    assert session.dnns == {"a"}


def test_a_tunnel_that_the_upf_has_chosen(n4: N4) -> None:
    session = n4.accept(rules(None, "10.61.1.2"), created=pdr(1, f_teid(0x1001), kind=8))
    assert session.teids == {0x1001}
    # An update that lets it choose, without naming another tunnel, leaves it as it is.
    n4.hear(message(52, 3, pdr(1, pdi(f_teid(None)), kind=9), seid=0x99), sent=False)
    n4.hear(message(53, 3, cause(), seid=5), sent=True)
    assert session.teids == {0x1001}


def test_tunnels_from_the_core_are_left_out_and_network_instances_stand_in_for_a_dnn(n4: N4) -> None:
    session = n4.accept(rules(17, "10.61.1.2", instance=b"video"), pdr(3, pdi(f_teid(18), source=1)))
    assert (session.teids, session.dnns) == ({17}, {"video"})


def test_a_modification_counts_once_it_was_accepted(n4: N4) -> None:
    n4.establish()
    for sequence, number in ((3, 64), (4, 1)):
        change = pdr(3, pdi(f_teid(18), ue("10.61.1.3"))) + pdr(1, kind=15)
        n4.hear(message(52, sequence, change, seid=0x99), sent=False)
        session = n4.get()
        assert session is not None
        assert session.teids == {17}
        n4.hear(message(53, sequence, cause(number), seid=5), sent=True)
    assert n4.changed() == [(0, 0x99)]
    assert session.teids == {18}


def modification(number: int, *parts: bytes) -> list[tuple[bool, bytes]]:
    return [(False, message(52, 3, *parts, seid=0x99)), (True, message(53, 3, cause(number), seid=5))]


def deletion(number: int) -> list[tuple[bool, bytes]]:
    return [(False, message(54, 3, seid=0x99)), (True, message(55, 3, cause(number), seid=5))]


def report(octets: bytes) -> list[tuple[bool, bytes]]:
    return [(True, message(56, 1, element(161, octets), seid=5)), (False, message(57, 1, cause(), seid=0x99))]


def association(by_upf: bool, *more: bytes) -> list[tuple[bool, bytes]]:
    mine, other = (UP, CP) if by_upf else (CP, UP)
    request = message(5, 9, node(mine), RECOVERY, *more)
    return [(by_upf, request), (not by_upf, message(6, 9, node(other), cause(), RECOVERY))]


ENDS: dict[str, tuple[list[tuple[bool, bytes]], bool]] = {
    "deletion": (deletion(1), True),
    "deletion of what is not there": (deletion(65), True),
    "modification of what is not there": (modification(65), True),
    "the UPF reports its end": (report(b"\1"), True),
    "the UPF reports something else": (report(b"\0"), False),
    "release": ([(False, message(9, 3, node())), (True, message(10, 3, node(UP), cause()))], True),
    "association by the UPF": (association(True), True),
    "association that keeps sessions": (association(False, element(183, b"")), False),
    "handover": (modification(1, element(10, element(108, bytes(4)))), False),
}


@pytest.mark.parametrize(("exchange", "gone"), ENDS.values(), ids=ENDS)
def test_a_session_ends_or_stays(n4: N4, exchange: list[tuple[bool, bytes]], gone: bool) -> None:
    n4.establish()
    for sent, octets in exchange:
        assert n4.get() is not None
        n4.hear(octets, sent=sent)
    assert (n4.get() is None) == gone


def test_a_new_association_is_without_sessions(n4: N4) -> None:
    n4.associate()
    n4.establish()
    n4.establish(0x77, 3, 18, address=OTHER)
    n4.changed()
    n4.associate(9, number=64)
    assert n4.changed() == []
    n4.associate(10)
    assert n4.changed() == [(0, 0x99)]
    assert n4.get() is None
    assert n4.get(0x77) is not None, "another control plane's stay"
    n4.establish()
    assert n4.get() is not None, "requested again under the same number"


def test_a_process_that_begins_anew_has_no_sessions(n4: N4) -> None:
    n4.establish()
    n4.now_ns = 3 * SECOND
    n4.establish(0x77, 3, 18)
    n4.changed()
    n4.sessions.restarted(1, 9 * SECOND)
    assert n4.changed() == []
    n4.sessions.restarted(0, 2 * SECOND)
    assert n4.changed() == [(0, 0x99)]
    assert n4.get(0x77) is not None, "which was set up with the new process"


def test_a_repeated_request_is_settled_once(n4: N4) -> None:
    for _ in range(2):
        n4.establish()
    assert n4.changed() == [(0, 0x99)]
    n4.hear(message(54, 3, seid=0x99), sent=False)
    n4.hear(message(55, 3, cause(), seid=5), sent=True)
    n4.hear(message(51, 2, node(UP), cause(), f_seid(0x99, UP), seid=5), sent=True)
    assert n4.get() is None, "a late copy of an answer brings nothing back"


# -- what others may send ------------------------------------------------------------------------------------------


def test_a_forged_request_has_to_be_accepted(n4: N4) -> None:
    """From the SMF's own address even: the UPF answers what it has carried out."""
    n4.establish()
    n4.hear(message(50, 3, node(), f_seid(6), rules(666, "10.61.1.66"), dnn("a"), seid=0), sent=False)
    n4.hear(message(54, 4, seid=0x99), sent=False)
    n4.hear(message(5, 5, node(), RECOVERY), sent=False)
    assert n4.get() is not None
    assert len(n4.sessions) == 1


def test_an_answer_from_elsewhere_is_none(n4: N4) -> None:
    request = message(50, 2, node(), f_seid(5), rules(17, "10.61.1.2"), seid=0)
    answer = message(51, 2, node(UP), cause(), f_seid(0x99, UP), seid=5)
    n4.hear(request, sent=False)
    n4.hear(answer, sent=False)  # comes in where the UPF's go out
    n4.hear(answer, sent=True, other=OTHER)  # to somebody without a request
    n4.hear(answer, sent=True, peer_port=9999)
    n4.hear(message(53, 2, cause(), seid=5), sent=True)
    assert n4.get() is None


def test_two_requests_under_one_number_are_contested(n4: N4) -> None:
    n4.hear(message(50, 2, node(), f_seid(5), rules(17, "10.61.1.2"), seid=0), sent=False)
    n4.hear(message(50, 2, node(), f_seid(5), rules(666, "10.61.1.2"), seid=0), sent=False)
    n4.hear(message(51, 2, node(UP), cause(), f_seid(0x99, UP), seid=5), sent=True)
    assert n4.get() is None
    assert n4.sessions.unexplained[0] == 1


def test_what_was_not_seen_is_counted_until_the_next_association(n4: N4) -> None:
    n4.hear(message(51, 2, node(UP), cause(), f_seid(0x99, UP), seid=5), sent=True)
    n4.hear(b"\x21\x32\0\1", sent=False)
    assert (n4.sessions.unexplained[0], n4.sessions.senseless[0]) == (1, 1)
    n4.associate()
    assert not n4.sessions.unexplained[0]


OPTIONAL = {
    "S-NSSAI": element(257, b"\1"),
    "QFI": pdr(3, pdi(element(124, b""))),
    "UE address": pdr(3, pdi(element(93, b"\x02"))),
    "rule": element(1, b"\0\x38"),
}


@pytest.mark.parametrize("part", OPTIONAL.values(), ids=OPTIONAL)
def test_a_malformed_optional_element_costs_no_session(n4: N4, part: bytes) -> None:
    """Of the establishment, of its answer, and of a modification: the rest counts, and what was left out is counted."""
    session = n4.accept(part, rules(17, "10.61.1.2"), dnn("a"), created=element(8, element(56, b"\0")))
    assert (session.teids, session.dnns, n4.sessions.senseless[0]) == ({17}, {"a"}, 2)
    for sent, octets in modification(1, part, pdr(1, kind=15), pdr(4, pdi(f_teid(18)))):
        n4.hear(octets, sent=sent)
    assert (session.teids, n4.sessions.senseless[0]) == ({18}, 3)
    assert not n4.sessions.unexplained[0]
    n4.associate()
    assert not n4.sessions.senseless[0]


@pytest.mark.parametrize("broken", [element(60, b""), element(57, b"\0")], ids=["node", "F-SEID"])
def test_an_accepted_session_without_a_mandatory_element_is_missed(n4: N4, broken: bytes) -> None:
    n4.hear(message(50, 2, rules(17, "10.61.1.2"), seid=0), sent=False)
    n4.hear(message(51, 2, node(UP), cause(), f_seid(0x99, UP), seid=5), sent=True)
    assert (n4.get(), n4.sessions.unexplained[0]) == (None, 1)
    n4.hear(message(50, 3, broken, rules(17, "10.61.1.2"), seid=0), sent=False)
    n4.hear(message(51, 3, node(UP), cause(), f_seid(0x99, UP), seid=5), sent=True)
    assert (n4.get(), n4.sessions.unexplained[0], n4.sessions.senseless[0]) == (None, 2, 1)


def test_requests_without_answers_are_given_up(n4: N4) -> None:
    n4.hear(message(50, 2, node(), f_seid(5), rules(17, "10.61.1.2"), seid=0), sent=False)
    n4.now_ns += GIVE_UP_NS
    n4.hear(message(54, 9, seid=1), sent=False)
    n4.hear(message(51, 2, node(UP), cause(), f_seid(0x99, UP), seid=5), sent=True)
    assert n4.get() is None


def test_state_is_bounded() -> None:
    n4 = N4(most=3)
    for number in range(5):
        n4.establish(number + 1, number + 1, number + 1)
    assert len(n4.sessions) == 3
    assert n4.sessions.over == 2
    for number in range(2 * MOST_OPEN):
        n4.hear(message(54, number, seid=1), sent=False)
    assert len(n4.sessions._requests) <= MOST_OPEN
    for number in range(40):
        change = b"".join(pdr(1000 * number + item, pdi(f_teid(1))) for item in range(1, 20))
        n4.hear(message(52, number, change, seid=1), sent=False)
        n4.hear(message(53, number, cause(), seid=5), sent=True)
    assert n4.get(1) is None, "a session of more rules than any has"


def test_sessions_of_nobody_are_not_kept(n4: N4) -> None:
    n4.establish(name="unknown")
    assert n4.get() is None


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([CP, OTHER]), st.integers(0, 400)), max_size=30), st.data())
def test_whatever_comes_in_whatever_order(picks: list[tuple[bool, IPv4Address, int]], data: st.DataObject) -> None:
    """Nothing raises, indices agree, and what is known was accepted."""
    said = [
        message(5, 1, node(), RECOVERY),
        message(6, 1, node(UP), cause()),
        message(50, 2, node(), f_seid(5), rules(17, "10.61.1.2"), seid=0),
        message(51, 2, node(UP), cause(), f_seid(0x99, UP), seid=5),
        message(52, 3, pdr(1, pdi(f_teid(18)), kind=9), seid=0x99),
        message(53, 3, cause(), seid=5),
        message(54, 4, seid=0x99),
        message(55, 4, cause(), seid=5),
        message(56, 5, element(161, b"\1"), seid=5),
        message(57, 5, cause(), seid=0x99),
    ]
    n4, accepted = N4(), False
    for sent, other, number in picks:
        octets = bytearray(said[number % len(said)])
        if number >= 200:
            octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
        accepted |= sent and octets[1] == 51
        n4.hear(bytes(octets), sent=sent, other=other)
        n4.changed()
    assert accepted or not len(n4.sessions)
    assert len(n4.sessions) == sum(map(len, n4.sessions._of_node.values()))


@pytest.mark.parametrize("number", [64, 72, 75, 2])
def test_one_that_was_refused_is_not(n4: N4, number: int) -> None:
    n4.hear(message(50, 2, node(), f_seid(5), rules(17, "10.61.1.2"), seid=0), sent=False)
    n4.hear(message(51, 2, node(UP), cause(number), f_seid(0x99, UP), seid=5), sent=True)
    assert n4.get() is None
