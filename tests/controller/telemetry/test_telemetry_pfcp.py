"""PFCP transactions on a real N4, distinguished by message type and matched by peers and sequence number."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from slicepilot.controller.telemetry.histogram import quantiles_us
from slicepilot.controller.telemetry.layout import PFCP_KINDS
from slicepilot.controller.telemetry.pfcp import PfcpProbe

from .conftest import Peers
from .n4.octets import message

# Request types by what they are counted as (TS 29.244, table 7.3-1).
REQUESTS = {
    "heartbeat": [1],
    "association": [5, 7, 9],
    "establishment": [50],
    "modification": [52],
    "deletion": [54],
    "report": [56],
    "other": [3, 12, 14, 16],
}


@pytest.fixture
def probe(network: Any) -> Iterator[PfcpProbe]:
    with PfcpProbe([network.points(n4=True)], report=True) as made:
        yield made


def counts(probe: PfcpProbe, field: str) -> dict[str, int]:
    return {
        kind: int(probe.transactions[0, i][field])
        for i, kind in enumerate(PFCP_KINDS)
        if probe.transactions[0, i][field]
    }


def test_each_type_is_counted_as_what_it_is(probe: PfcpProbe, peers: Peers) -> None:
    sequence = 0
    for types in REQUESTS.values():
        for kind in types:
            for by_upf in (False, True):
                sequence += 1
                seid = 7 if kind >= 50 else None
                peers.ask(message(kind, sequence, seid=seid), message(kind + 1, sequence, seid=seid), by_upf)
    expected = {kind: 2 * len(types) for kind, types in REQUESTS.items()}
    assert counts(probe, "requests") == expected
    assert counts(probe, "answers") == expected
    assert counts(probe, "orphans") == counts(probe, "retransmissions") == {}
    events = probe.events.read()
    assert sorted(events["type"].tolist()) == sorted(2 * [kind for types in REQUESTS.values() for kind in types])
    assert events["sequence"].tolist() == list(range(1, sequence + 1))


@pytest.mark.realtime
def test_latency_is_from_request_to_answer(probe: PfcpProbe, peers: Peers) -> None:
    before = time.monotonic()
    peers.ask(message(52, 1, seid=1), message(53, 1, seid=1), after_s=0.02)
    longest_us = 1e6 * (time.monotonic() - before)
    [event] = probe.events.read()
    latency_us = (event["answer_ns"] - event["request_ns"]) / 1e3
    assert 20_000 <= latency_us <= longest_us
    [median] = quantiles_us(probe.transactions[0, PFCP_KINDS.index("modification")]["latency"], (0.5,))
    assert median == pytest.approx(latency_us, rel=0.07)


def test_the_same_number_means_nothing_between_other_peers_or_types(probe: PfcpProbe, peers: Peers) -> None:
    """Both ends ask with the same numbers at once, and answers come in another order."""
    for kind in (50, 52, 54):
        peers.ask(message(kind, 9, seid=1), None)
        peers.ask(message(kind, 9, seid=1), None, by_upf=True)
    for kind in (54, 50, 52):
        peers.upf.sendto(message(kind + 1, 9, seid=1), peers.smf.getsockname())
        peers.smf.recv(2048)
    assert counts(probe, "answers") == {"establishment": 1, "modification": 1, "deletion": 1}
    peers.smf.sendto(message(53, 9, seid=1), peers.upf.getsockname())
    peers.upf.recv(2048)
    assert counts(probe, "answers")["modification"] == 2
    assert counts(probe, "orphans") == {}


def test_a_retransmitted_request_counts_from_the_first(probe: PfcpProbe, peers: Peers) -> None:
    peers.ask(message(50, 3, seid=0), None, after_s=0.02)
    peers.ask(message(50, 3, seid=0), message(51, 3, seid=0))
    peers.smf.settimeout(0.05)
    peers.upf.sendto(message(51, 3, seid=0), peers.smf.getsockname())  # the answer to the other copy
    peers.smf.recv(2048)
    [event] = probe.events.read()
    assert event["answer_ns"] - event["request_ns"] >= 20_000_000
    assert counts(probe, "requests") == {"establishment": 2}
    assert (
        counts(probe, "answers") == counts(probe, "retransmissions") == counts(probe, "orphans") == {"establishment": 1}
    )


def test_an_answer_goes_to_the_port_of_the_request(probe: PfcpProbe, network: Any, peers: Peers) -> None:
    with contextlib.closing(network.ran.socket(peers.smf.family)) as other:
        other.bind((peers.smf.getsockname()[0], 0))
        other.settimeout(2.0)
        other.sendto(message(1, 5), peers.upf.getsockname())
        _, source = peers.upf.recvfrom(2048)
        peers.upf.sendto(message(2, 5), source)
        assert other.recv(2048) == message(2, 5)
    assert counts(probe, "answers") == {"heartbeat": 1}
