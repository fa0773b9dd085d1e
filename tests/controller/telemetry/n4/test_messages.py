"""The PFCP reader: against messages by hand from the specification, against scapy, and on arbitrary octets."""

from __future__ import annotations

import struct
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.controller.telemetry.n4 import elements as ie
from slicepilot.controller.telemetry.n4.elements import CHOOSE, Malformed
from slicepilot.controller.telemetry.n4.messages import MOST_RULES, Detection, Message, messages
from slicepilot.env.slices import SNssai

from .octets import CP, cause, dnn, element, f_seid, f_teid, labels, message, node, pdi, pdr, rules, s_nssai, ue

ESTABLISHMENT = message(50, 7, node(), f_seid(5), rules(17, "10.61.1.2"), dnn("Internet"), s_nssai(1, "00000a"), seid=0)


def item(octets: bytes) -> Message:
    [result] = messages(octets)
    return result


def test_an_establishment_says_whose_session_it_is() -> None:
    result = item(ESTABLISHMENT)
    assert (result.kind, result.sequence, result.seid, result.f_seid) == (50, 7, 0, 5)
    assert result.node == b"\0" + CP.packed
    assert (result.dnn, result.s_nssai) == ("internet", SNssai(1, "00000A"))
    address = ip_network("10.61.1.2/32")
    assert result.rules == {1: Detection(True, 17, (address,), (9,)), 2: Detection(False, None, (address,))}


def test_a_modification_says_what_becomes_of_rules() -> None:
    update = pdr(1, pdi(f_teid(None)), kind=9) + pdr(4, element(29, bytes(4)), kind=9) + pdr(2, kind=15)
    qer = element(7, element(109, struct.pack("!I", 3)) + element(124, b"\x07"))
    result = item(message(52, 8, update, qer, element(18, element(109, struct.pack("!I", 4))), seid=77))
    assert result.rules == {1: Detection(True, CHOOSE)}  # an Update PDR without a PDI leaves that as it is
    assert (result.removed, result.marks, result.unmarked, result.seid) == ([2], {3: 7}, [4], 77)


def test_an_answer_says_what_was_chosen() -> None:
    created = pdr(1, f_teid(0x1001), ue("10.61.1.9"), kind=8)
    result = item(message(51, 7, node(), cause(), f_seid(0x99), created, seid=5))
    assert (result.cause, result.f_seid) == (1, 0x99)
    assert result.chosen == {1: Detection(False, 0x1001, (ip_network("10.61.1.9/32"),))}


def test_bundled_messages_are_read_one_by_one() -> None:
    heartbeat = message(1, 1, element(96, bytes(4)), follow_on=True)
    first = message(54, 2, seid=8, follow_on=True)
    bundle = messages(heartbeat + first + message(54, 3, seid=9))
    assert [(result.kind, result.seid) for result in bundle] == [(54, 8), (54, 9)]


def test_unknown_elements_are_passed_over() -> None:
    vendor = element(0x8001, struct.pack("!H", 10415) + b"anything")
    assert item(message(50, 7, vendor, node(), f_seid(5), element(9999, b""), seid=0)).f_seid == 5


def test_of_what_comes_twice_the_first_counts() -> None:
    assert item(message(50, 7, f_seid(5), f_seid(6), dnn("a"), dnn("b"), seid=0)).dnn == "a"


ADDRESSES = {
    b"\x02" + bytes([10, 0, 0, 1]): ["10.0.0.1/32"],
    b"\x06" + bytes([10, 0, 0, 1]): ["10.0.0.1/32"],
    b"\x01" + bytes.fromhex("20010db8000000010000000000000005"): ["2001:db8:0:1::/64"],
    b"\x03" + bytes([10, 0, 0, 1]) + bytes.fromhex("20010db8" + "00" * 12): ["10.0.0.1/32", "2001:db8::/64"],
    b"\x09" + bytes.fromhex("20010db8" + "00" * 12) + b"\x08": ["2001:db8::/56"],
    b"\x41" + bytes.fromhex("20010db8" + "00" * 12) + b"\x30": ["2001:db8::/48"],
    b"\x41" + bytes.fromhex("20010db8" + "00" * 12) + b"\x80": ["2001:db8::/64"],
    b"\x10": [],
}


@pytest.mark.parametrize(("octets", "networks"), ADDRESSES.items())
def test_addresses_of_a_ue(octets: bytes, networks: list[str]) -> None:
    assert list(ie.ue_addresses(octets)) == [ip_network(item) for item in networks]


NAMES = {
    labels("internet"): "internet",
    labels("IMS.mnc001.mcc001.gprs"): "ims",
    labels("video.slices"): "video.slices",
    b"internet": "internet",
    b"5gnet": "5gnet",
    b"\x08interne": None,
    b"\x00": None,
    b"inter net": None,
    b"inter\x1b[2Jnet": None,
    b"x" * 101: None,
    b"": None,
}


@pytest.mark.parametrize(("octets", "name"), NAMES.items())
def test_names_are_labels_or_text(octets: bytes, name: str | None) -> None:
    assert ie.name_of(octets) == name


BROKEN = {
    "nothing": b"",
    "another version": b"\x40" + ESTABLISHMENT[1:],
    "longer than the datagram": ESTABLISHMENT[:2] + struct.pack("!H", 4096) + ESTABLISHMENT[4:],
    "octets behind it": ESTABLISHMENT + b"\0",
    "nothing follows": bytes([ESTABLISHMENT[0] | 4]) + ESTABLISHMENT[1:],
    "no SEID": message(50, 7, node()),
    "a SEID for an association": message(5, 7, node(), seid=0),
    "half an element": message(50, 7, node(), b"\0\x3c\0", seid=0),
    "an element that is too long": message(50, 7, struct.pack("!HH", 60, 500) + bytes(5), seid=0),
    "an F-SEID without an address": message(50, 7, element(57, bytes(9)), seid=0),
    "a cause without a number": message(51, 7, node(), element(19, b""), f_seid(5), seid=0),
    "a node of another kind": message(5, 7, element(60, b"\x07abcd")),
    "too many rules": message(52, 7, *(pdr(n, kind=15) for n in range(MOST_RULES + 1)), seid=1),
}


@pytest.mark.parametrize("octets", BROKEN.values(), ids=BROKEN)
def test_what_is_broken_is_said_to_be(octets: bytes) -> None:
    with pytest.raises(Malformed):
        messages(octets)


LEFT_OUT = {
    "a PDR inside that is too long": element(1, struct.pack("!HH", 56, 3) + b"\0\1"),
    "no PDR ID": element(1, pdi()),
    "no source interface": pdr(9, element(2, f_teid(1))),
    "a PDI that ends within an element": pdr(9, element(2, element(20, b"\0") + b"\0\x15\0")),
    "TEID 0": pdr(9, pdi(f_teid(0))),
    "a short F-TEID": pdr(9, pdi(element(21, b"\1\0\0\0\1\n"))),
    "an F-TEID without an address": pdr(9, pdi(element(21, b"\0\0\0\0\1"))),
    "a prefix of everything": pdr(9, pdi(element(93, b"\x41" + bytes(17)))),
    "a short UE address": pdr(9, pdi(element(93, b"\x02\n"))),
    "an empty QFI": pdr(9, pdi(element(124, b""))),
    "a QER without an ID": element(7, element(124, b"\5")),
    "a QER with an empty QFI": element(7, element(109, bytes(4)) + element(124, b"")),
    "a rule to remove without an ID": element(15, b""),
    "a short S-NSSAI": element(257, b"\1\0"),
    "an empty S-NSSAI": element(257, b""),
    "an empty DNN": element(159, b""),
    "a DNN that is no name": element(159, b"\7\0\xff"),
    "empty flags of a report": element(161, b""),
    "a chosen tunnel of TEID 0": pdr(9, f_teid(0), kind=8),
    "a chosen address that is short": pdr(9, element(93, b"\x02"), kind=8),
}


@pytest.mark.parametrize("part", LEFT_OUT.values(), ids=LEFT_OUT)
def test_of_what_may_be_absent_only_what_makes_no_sense_is_left_out(part: bytes) -> None:
    """Clause 7.6: it counts as absent. So does a rule that cannot be read, as the others may be."""
    result = item(message(50, 7, part, node(), f_seid(5), rules(17, "10.61.1.2"), seid=0))
    assert result.ignored == 1
    assert (result.f_seid, result.rules[1].teid, result.rules[2].addresses) == (5, 17, (ip_network("10.61.1.2/32"),))
    assert result.rules.get(9, Detection(True)) == Detection(True)
    assert (result.dnn, result.s_nssai) == (None, None)


def read(octets: bytes) -> list[Message] | None:
    """Anything else than `Malformed` is a failure."""
    try:
        return messages(octets)
    except Malformed:
        return None


@given(st.binary(max_size=4096))
def test_anything_may_come(octets: bytes) -> None:
    read(octets)
    read(b"\x21\x32" + struct.pack("!H", len(octets)) + octets)


VALID = [
    ESTABLISHMENT,
    message(51, 7, node(), cause(), f_seid(0x99), pdr(1, f_teid(0x1001), kind=8), seid=5),
    message(52, 8, pdr(1, pdi(f_teid(None), element(22, b"internet")), kind=9), pdr(2, kind=15), seid=77),
    message(5, 1, node(), element(96, bytes(4))),
]


@given(st.sampled_from(VALID), st.data())
def test_what_is_cut_or_changed_does_no_harm(octets: bytes, data: st.DataObject) -> None:
    read(octets[: data.draw(st.integers(0, len(octets)))])
    changed = bytearray(octets)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    result = read(bytes(changed))
    for item in result or ():
        assert all(rule.teid is None or 0 <= rule.teid < 1 << 32 for rule in item.rules.values())
        assert all(0 <= qfi < 64 for rule in item.rules.values() for qfi in rule.flows)


@given(
    teid=st.integers(1, (1 << 32) - 1),
    address=st.ip_addresses(v=4),
    qfi=st.integers(0, 63),
    seid=st.integers(0, (1 << 64) - 1),
    sequence=st.integers(0, (1 << 24) - 1),
    pdr_id=st.integers(0, (1 << 16) - 1),
)
def test_what_scapy_writes_is_read_as_it_was_meant(
    teid: int, address: Any, qfi: int, seid: int, sequence: int, pdr_id: int
) -> None:
    pfcp: Any = pytest.importorskip("scapy.contrib.pfcp")
    detection = pfcp.IE_PDI(
        IE_list=[
            pfcp.IE_SourceInterface(interface="Access"),
            pfcp.IE_FTEID(V4=1, TEID=teid, ipv4="10.210.1.2"),
            pfcp.IE_NetworkInstance(instance="internet"),
            pfcp.IE_UE_IP_Address(V4=1, ipv4=str(address)),
            pfcp.IE_QFI(QFI=qfi),
        ]
    )
    request = pfcp.PFCP(S=1, seid=0, seq=sequence) / pfcp.PFCPSessionEstablishmentRequest(
        IE_list=[
            pfcp.IE_NodeId(id_type="FQDN", id="smf.example"),
            pfcp.IE_FSEID(v4=1, seid=seid, ipv4="10.211.1.1"),
            pfcp.IE_CreatePDR(IE_list=[pfcp.IE_PDR_Id(id=pdr_id), pfcp.IE_Precedence(precedence=1), detection]),
            pfcp.IE_APN_DNN(apn_dnn="internet"),
        ]
    )
    result = item(bytes(request))
    assert (result.kind, result.sequence, result.f_seid, result.dnn) == (50, sequence, seid, "internet")
    expected = Detection(True, teid, (ip_network(address),), (qfi,), "internet")
    assert result.rules == {pdr_id: expected}
