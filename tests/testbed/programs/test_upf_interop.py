"""The UPF against an SMF, a gNB and a terminal that share no code with it: scapy builds and reads every message.

It runs as users run it, in a network namespace with a real TUN device; the SMF and the gNB are in another. Over
IPv4 and over IPv6, outside and inside the tunnel.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from .scapy_smf import (
    ACCEPTED,
    ANSWER,
    APPLICATION_PORT,
    BOTH,
    CONTEXT_NOT_FOUND,
    CP_SEID,
    GNB_TEID,
    GTPU_PORT,
    IPV4,
    IPV6,
    N6_ADDRESS,
    N6_ADDRESS6,
    PAYLOAD,
    PFCP_PORT,
    QFI,
    STARTED,
    TEID,
    TIMEOUT_S,
    Addresses,
    Network,
    Peer,
    gtp,
    inet,
    inet6,
    pfcp,
)

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/net/tun").exists(), reason="needs root and /dev/net/tun"
)


@contextlib.contextmanager
def running(network: Network, outer: Addresses, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A UPF that is ready; it has to end well on SIGTERM if it is still there."""
    host = outer.upf if outer is IPV4 else f"[{outer.upf}]"
    addresses = ("--n4", f"{host}:{PFCP_PORT}", "--n3", f"{host}:{GTPU_PORT}", "--heartbeat", "0")
    pools = ("--ue-pool", IPV4.pool, "--ue-pool", IPV6.pool)
    upf = network.start_upf(*addresses, *pools, *flags)
    try:
        assert upf.stdout is not None
        ready = json.loads(upf.stdout.readline())
        assert ready["event"] == "ready"
        assert ready["n3"] == f"{host}:{GTPU_PORT}"
        yield upf
        if upf.poll() is None:
            upf.send_signal(signal.SIGTERM)
            assert upf.wait(TIMEOUT_S) == 0
    finally:
        upf.kill()
        upf.communicate()


@BOTH
@pytest.mark.parametrize("inner", [IPV4, IPV6], ids=["inner-ipv4", "inner-ipv6"])
def test_a_session_from_setup_to_deletion(network: Network, outer: Addresses, inner: Addresses) -> None:
    with running(network, outer), contextlib.closing(Peer(network, outer)) as peer:
        association = peer.associate()
        assert association[pfcp.IE_UPFunctionFeatures].FTUP == 1
        assert association[pfcp.IE_RecoveryTimeStamp].timestamp > STARTED
        peer.establish(inner)
        with network.udp("dn", inner, inner.server, APPLICATION_PORT) as server:
            peer.send_uplink(inner)
            data, terminal = server.recvfrom(2048)
            assert (data, ip_address(terminal[0]), terminal[1]) == (PAYLOAD, ip_address(inner.terminal), 5000)

            server.sendto(ANSWER, terminal)
            tunnelled = gtp.GTP_U_Header(peer.n3.recv(2048))
        assert (tunnelled.teid, tunnelled.gtp_type) == (GNB_TEID, 255)
        container = tunnelled[gtp.GTPPDUSessionContainer]
        assert (container.type, container.QFI) == (0, QFI)
        inside = tunnelled[inet.IP if inner is IPV4 else inet6.IPv6]
        assert (inside.src, inside.dst, bytes(inside[inet.UDP].payload)) == (inner.server, inner.terminal, ANSWER)

        answer = peer.ask(pfcp.PFCPSessionDeletionRequest(), seid=peer.seid)
        assert (answer[pfcp.IE_Cause].cause, answer.seid) == (ACCEPTED, CP_SEID)
        peer.send_uplink(inner)
        indication = gtp.GTP_U_Header(peer.n3.recv(2048))
        assert indication.gtp_type == 26
        elements = bytes(indication[gtp.GTPErrorIndication])
        address = ip_address(outer.upf).packed
        # TEID Data I and GTP-U Peer Address (TS 29.281 clauses 8.3 and 8.4).
        expected = b"\x10" + TEID.to_bytes(4, "big") + b"\x85" + len(address).to_bytes(2, "big") + address
        assert expected in elements

        answer = peer.ask(pfcp.PFCPSessionDeletionRequest(), seid=peer.seid)
        assert (answer[pfcp.IE_Cause].cause, answer.seid) == (CONTEXT_NOT_FOUND, 0)


@BOTH
def test_the_upf_chooses_a_tunnel(network: Network, outer: Addresses) -> None:
    choose = pfcp.IE_FTEID(CHID=1, CH=1, V4=int(outer is IPV4), V6=int(outer is IPV6), choose_id=5)
    with running(network, outer), contextlib.closing(Peer(network, outer)) as peer:
        peer.associate()
        answer = peer.establish(IPV4, tunnel=choose)
        created = answer[pfcp.IE_CreatedPDR]
        assert created[pfcp.IE_PDR_Id].id == 1
        tunnel = created[pfcp.IE_FTEID]
        assert ip_address(tunnel.ipv4 if outer is IPV4 else tunnel.ipv6) == ip_address(outer.upf)
        with network.udp("dn", IPV4, IPV4.server, APPLICATION_PORT) as server:
            peer.send_uplink(IPV4, teid=tunnel.TEID)
            assert server.recv(2048) == PAYLOAD


def test_one_octet_of_apply_action_and_a_handover(network: Network) -> None:
    with running(network, IPV4), contextlib.closing(Peer(network, IPV4)) as peer:
        peer.associate()
        peer.establish(IPV4, action=pfcp.IE_ApplyAction(FORW=1))
        with network.udp("dn", IPV4, IPV4.server, APPLICATION_PORT) as server:
            server.sendto(ANSWER, (IPV4.terminal, 5000))
            assert gtp.GTP_U_Header(peer.n3.recv(2048)).teid == GNB_TEID
            change = pfcp.IE_UpdateFAR(
                IE_list=[
                    pfcp.IE_FAR_Id(id=2),
                    pfcp.IE_UpdateForwardingParameters(
                        IE_list=[peer.gnb_tunnel(0x3003), pfcp.IE_PFCPSMReqFlags(SNDEM=1)]
                    ),
                ]
            )
            answer = peer.ask(pfcp.PFCPSessionModificationRequest(IE_list=[change]), seid=peer.seid)
            assert answer[pfcp.IE_Cause].cause == ACCEPTED
            server.sendto(ANSWER, (IPV4.terminal, 5000))
            assert gtp.GTP_U_Header(peer.n3.recv(2048)).teid == 0x3003


@pytest.mark.parametrize("inner", [IPV4, IPV6], ids=["inner-ipv4", "inner-ipv6"])
def test_a_terminal_reaches_no_address_of_the_upf(network: Network, inner: Addresses) -> None:
    """Neither GTP-U for a tunnel, which would be forwarded as a gNB's, nor PFCP; also at addresses that come later."""
    late, own = (
        (
            "10.9.9.9",
            ["10.100.0.2", "10.100.0.255", N6_ADDRESS, "10.102.0.255", "127.0.0.1", "255.255.255.255", "224.0.0.1"],
        )
        if inner is IPV4
        else ("fd00:9::9", ["fd00:100::2", N6_ADDRESS6, "fd00:102::", "::1", "ff02::1", "fe80::1"])
    )
    with running(network, IPV4) as upf, contextlib.closing(Peer(network, IPV4)) as peer:
        peer.associate()
        peer.establish(inner)
        nested = inet.IP(src=IPV4.terminal, dst=IPV4.server) / inet.UDP(sport=5000, dport=APPLICATION_PORT) / PAYLOAD
        tunnelled = bytes(
            gtp.GTP_U_Header(teid=TEID, next_ex=0x85, E=1) / gtp.GTPPDUSessionContainer(type=1, QFI=QFI) / nested
        )
        heartbeat = bytes(pfcp.PFCP(S=0, seq=9) / pfcp.PFCPHeartbeatRequest())
        network.sh("upf", f"ip -{inner.version} addr add {late} dev n6 {'nodad' * (inner is IPV6)}")
        with network.udp("dn", inner, inner.server, APPLICATION_PORT) as server:
            for address in [*own, late]:
                peer.send_uplink(inner, to=address, port=GTPU_PORT, payload=tunnelled)
                peer.send_uplink(inner, to=address, port=PFCP_PORT, payload=heartbeat)
            peer.send_uplink(inner, payload=b"the last")
            assert server.recv(2048) == b"the last"
        upf.send_signal(signal.SIGTERM)
        output, _ = upf.communicate(timeout=TIMEOUT_S)
        assert upf.returncode == 0
    assert json.loads(output.splitlines()[-1])["uplink"]["dropped"]["own_address"] == 2 * (len(own) + 1)


@BOTH
def test_path_management(network: Network, outer: Addresses) -> None:
    with running(network, outer), contextlib.closing(Peer(network, outer)) as peer:
        peer.n3.sendto(bytes(gtp.GTP_U_Header(seq=77, S=1) / gtp.GTPEchoRequest()), (outer.upf, GTPU_PORT))
        answer = gtp.GTP_U_Header(peer.n3.recv(2048))
        assert (answer.gtp_type, answer.seq) == (2, 77)
        assert bytes(answer[gtp.GTPEchoResponse]) == b"\x0e\x00"  # Recovery 0

        heartbeat = pfcp.PFCPHeartbeatRequest(IE_list=[pfcp.IE_RecoveryTimeStamp(timestamp=STARTED)])
        assert peer.ask(heartbeat)[pfcp.IE_RecoveryTimeStamp].timestamp > STARTED


def test_stops_with_its_counters_and_removes_the_device(network: Network) -> None:
    with running(network, IPV4, "--stats-interval", "50ms", "--tun", "uetun", "--tun-mtu", "1300") as upf:
        assert network.has_device("uetun")
        with contextlib.closing(Peer(network, IPV4)) as peer:
            peer.associate()
            peer.establish(IPV4)
            with network.udp("dn", IPV4, IPV4.server, APPLICATION_PORT) as server:
                sent = peer.send_uplink(IPV4)
                server.recv(2048)
        assert upf.stdout is not None
        assert json.loads(upf.stdout.readline())["event"] == "stats"
        upf.send_signal(signal.SIGINT)
        output, _ = upf.communicate(timeout=TIMEOUT_S)
        assert upf.returncode == 0
        lines = [json.loads(line) for line in output.splitlines()]
        assert all(line["event"] == "stats" for line in lines[:-1])
        stopped = lines[-1]
        assert stopped["event"] == "stopped"
        assert (stopped["uplink"]["packets"], stopped["uplink"]["bytes"]) == (1, len(sent))
        assert stopped["pfcp"]["sessions"] == 1
        assert not network.has_device("uetun")


def test_a_second_upf_on_the_same_device_says_so(network: Network) -> None:
    with running(network, IPV4):
        second = network.start_upf("--n4", "127.0.0.1", "--n3", "127.0.0.1")
        _, error = second.communicate(timeout=TIMEOUT_S)
        assert second.returncode == 1
        assert error == "upf: TUN device tun: TUNSETIFF: device or resource busy: it exists already\n"


def test_a_device_that_vanishes_ends_the_upf(network: Network) -> None:
    with running(network, IPV4) as upf:
        network.delete_device("tun")
        output, error = upf.communicate(timeout=TIMEOUT_S)
        assert upf.returncode == 1
        assert "upf: downlink: read TUN: file descriptor in bad state" in error
        assert json.loads(output.splitlines()[-1])["event"] == "stopped"
