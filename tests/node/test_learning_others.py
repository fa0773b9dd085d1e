"""Sessions are learned of programs that are not the project's: scapy's messages as an SMF, eUPF as a UPF."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from slicepilot.testbed.lifecycle.processes import ProcessId
from tests.testbed.programs.scapy_smf import ACCEPTED, IPV4, QFI, TEID, Network, Peer, pfcp

from .eupf import start_eupf
from .foreign import Foreign, opened, written
from .test_learning import Counted, polled


def promise_of(name: str, number: int) -> dict[str, Any]:
    promise = {"committed_mbps": 1, "delay_bound_ms": 500}
    return {"name": name, "s_nssai": {"sst": 1, "sd": f"00000{number}"}, "sla": promise, "weight": 1}


@pytest.fixture(name="network")
def _network() -> Iterator[Network]:
    """N3 and N4 are one interface here."""
    network = Network()
    try:
        network.build()
        host = IPV4.upf
        upf = network.start_upf("--n4", host, "--n3", host, "--heartbeat", "0", "--ue-pool", IPV4.pool)
        try:
            assert upf.stdout is not None
            assert "ready" in upf.stdout.readline()
            yield network
        finally:
            upf.kill()
            upf.communicate()
    finally:
        network.remove()


def chosen() -> Any:
    return pfcp.IE_FTEID(V4=1, CH=1)


def chosen_teid(answer: Any) -> int:
    """What the UPF says that it has chosen, as scapy reads it."""
    return int(answer[pfcp.IE_CreatedPDR][pfcp.IE_FTEID].TEID)


@pytest.mark.parametrize("choose", [False, True], ids=["given TEID", "chosen TEID"])
def test_the_messages_of_scapy(network: Network, tmp_path: Path, choose: bool) -> None:
    """It names no DNN: the Network Instance is used instead."""
    netns = network.names["upf"]
    where = {
        "upf": {"process": {"name": "upf"}, "netns": netns, "user": "root"},
        "devices": {"n3": "n3", "n4": "n3"},
    }
    slices = [
        promise_of(name, number) | where | {"traffic": {"dnns": [dnn]}}
        for number, (name, dnn) in enumerate((("a", "video"), ("b", "internet")))
    ]
    with closing(opened(written(tmp_path, netns, *slices))) as backend, closing(Peer(network, IPV4)) as peer:
        peer.associate()
        answer = peer.establish(IPV4, chosen() if choose else None)
        teid = chosen_teid(answer) if choose else TEID
        polled(backend)
        counted = Counted(backend)
        for _ in range(7):
            peer.send_uplink(IPV4, teid)
        assert counted() == [0, 7, 0]
        learned = backend.learning.learned("b")
        assert learned is not None
        assert (learned.sessions, learned.tunnels, learned.flows) == (1, 1, (QFI,))

        peer.send_uplink(IPV4, teid + 1)
        assert counted() == [0, 0, 1]
        gone = peer.ask(pfcp.PFCPSessionDeletionRequest(), seid=peer.seid)
        assert gone[pfcp.IE_Cause].cause == ACCEPTED
        polled(backend)
        peer.send_uplink(IPV4, teid)
        assert counted() == [0, 0, 1]


@pytest.fixture(name="eupf", scope="module")
def _eupf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    with start_eupf(tmp_path_factory.mktemp("eupf"), "generic", prefix="lx") as node:
        yield node


def test_sessions_of_eupf(eupf: Foreign, tmp_path: Path) -> None:
    where = {
        "upf": {"process": {"name": "eupf"}, "netns": eupf.netns[0], "user": "root"},
        "devices": {
            "n3": "n3",
            "n3_netns": f"{eupf.prefix}-ran",
            "n3_far": "n3-1",
            "n4": "n4",
            "n6_netns": f"{eupf.prefix}-dn",
            "n6_far": "n6-1",
        },
    }
    slices = [promise_of("a", 9) | where | {"traffic": {"s_nssai": True}}, promise_of("b", 1) | where]
    slices[1]["traffic"] = {"dnns": ["internet"], "s_nssai": True}
    with closing(opened(written(tmp_path, eupf.prefix, *slices))) as backend:
        assert len(backend.check()) == 2
        ProcessId.of(int((eupf.state / "smf.pid").read_text())).stop()
        (eupf.state / "smf.out").unlink()
        eupf._run("sessions", "1")
        polled(backend)
        learned = backend.learning.learned("b")
        assert learned is not None
        assert (learned.sessions, learned.tunnels, learned.flows) == (1, 1, (9,))
        counted = Counted(backend)
        eupf.load(seconds=2, mbps=2)
        eupf.carried_mbps()
        none, all_of_it, nobodys = counted()
        assert (none, nobodys) == (0, 0)
        assert all_of_it > 100
        assert backend.check() == ["a: no session of it was seen yet"]
