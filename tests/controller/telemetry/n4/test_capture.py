"""Which messages are copied from a real N4, and that losses are counted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

import pytest

from slicepilot.controller.telemetry.n4.capture import Capture
from slicepilot.controller.telemetry.n4.sessions import Datagram
from slicepilot.controller.telemetry.points import NetPoint
from tests.controller.telemetry.conftest import N4_ADDRESSES, Peers

from .octets import element, message

PAGE = 4096


def of_size(octets: int, kind: int = 50) -> bytes:
    empty = len(message(kind, 1, element(9999, b""), seid=0))
    return message(kind, 1, element(9999, bytes(octets - empty)), seid=0)


def addresses(number: int) -> list[IPv4Address | IPv6Address]:
    """The SMF's (1) or the UPF's (2)."""
    return [ip_address(text.format(number)) for text in N4_ADDRESSES.values()]


def capture_at(netns: Path, device: str = "n4", ring_octets: int = 1 << 20) -> Capture:
    made = Capture([NetPoint(netns, device)], ring_octets)
    made.watch(5, 0, addresses(2))
    return made


@pytest.fixture
def capture(network: Any) -> Iterator[Capture]:
    with contextlib.closing(capture_at(network.upf.path)) as made:
        yield made


def taken(capture: Capture) -> list[Datagram]:
    result = []
    while (heard := capture.next()) is not None:
        result.append(heard)
    return result


@pytest.mark.parametrize("octets", [16, 17, 300, 1400])
def test_messages_are_copied_octet_by_octet(capture: Capture, peers: Peers, octets: int) -> None:
    request, answer = of_size(octets) if octets > 20 else message(54, 1, seid=3), message(51, 1, seid=4)
    peers.to_upf(request)
    peers.from_upf(answer)
    first, second = taken(capture)
    assert (first.octets, first.sent, first.upf) == (request, False, 5)
    assert (second.octets, second.sent) == (answer, True)
    ends = (first.own, first.other, first.own_port, first.other_port)
    assert ends == (second.own, second.other, second.own_port, second.other_port)
    assert first.own.startswith(ip_address(peers.upf.getsockname()[0]).packed)
    assert first.other.startswith(ip_address(peers.smf.getsockname()[0]).packed)
    assert (first.own_port, first.other_port) == (8805, 8805)
    assert first.seen_ns <= second.seen_ns


def test_only_what_is_addressed_to_the_upf_and_what_it_sends(capture: Capture, peers: Peers) -> None:
    capture.watch(5, 0, [ip_address("10.101.0.77")])
    peers.to_upf(of_size(100))
    peers.from_upf(of_size(100))
    capture.watch(6, 0, addresses(1))  # as if it were the UPF's
    peers.to_upf(of_size(100))
    peers.from_upf(of_size(100))
    assert taken(capture) == []
    assert capture.counters["messages"].tolist() == [0]


def test_what_is_too_long_is_counted(network: Any, capture: Capture, peers: Peers) -> None:
    for home in (network.ran, network.upf):
        home.sh("ip link set n4 mtu 9000")
    peers.to_upf(of_size(4096))
    peers.to_upf(of_size(4097))
    [heard] = taken(capture)
    assert len(heard.octets) == 4096
    assert capture.counters["unread"].tolist() == [1]


def test_a_full_buffer_is_said_and_emptied(network: Any, peers: Peers) -> None:
    with contextlib.closing(capture_at(network.upf.path, ring_octets=PAGE)) as capture:
        for _ in range(50):
            peers.to_upf(of_size(300))
        lost = int(capture.counters["lost"][0])
        there = taken(capture)
        assert 5 <= len(there) <= PAGE // 300
        assert len(there) + lost == 50
        for turn in range(100):  # around its end many times
            request = of_size(100 + 13 * turn)
            peers.to_upf(request)
            [heard] = taken(capture)
            assert (heard.octets, heard.lost) == (request, lost)


def test_on_the_loopback_each_is_copied_once(network: Any) -> None:
    network.upf.sh("ip addr add 10.101.0.2/32 dev lo; ip addr add 10.101.0.9/32 dev lo")
    with contextlib.ExitStack() as stack:
        capture = stack.enter_context(contextlib.closing(capture_at(network.upf.path, "lo")))
        ends = []
        for address in ("10.101.0.9", "10.101.0.2"):
            end = stack.enter_context(contextlib.closing(network.upf.socket()))
            end.bind((address, 8805))
            end.settimeout(2.0)
            ends.append(end)
        peers = Peers(*ends)
        peers.to_upf(of_size(100))
        peers.from_upf(of_size(100, 51))
        assert [item.sent for item in taken(capture)] == [False, True]


def test_what_was_lost_is_watched_again(network: Any, capture: Capture) -> None:
    assert capture.heal() == (set(), {})
    network.upf.sh("ip link del n4")
    renewed, missing = capture.heal()
    assert not renewed
    assert "no such device" in missing[0] or "has gone" in missing[0]
    network._veth(network.ran, "n4", network.upf, "n4", "10.101.0", "fd00:101:")
    assert capture.heal() == ({0}, {})
