"""The UPF against an SMF, a gNB and a terminal that share no code with it: scapy builds and reads every message.

It runs as users run it, in a network namespace with a real TUN device; the SMF and the gNB are in another one. Over
IPv4 and over IPv6, outside and inside the tunnel.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from slicepilot.configs import ConfigError
from slicepilot.testbed.lifecycle.processes import binary

pfcp: Any = pytest.importorskip("scapy.contrib.pfcp")
gtp: Any = pytest.importorskip("scapy.contrib.gtp")
inet: Any = pytest.importorskip("scapy.layers.inet")
inet6: Any = pytest.importorskip("scapy.layers.inet6")
pyroute2: Any = pytest.importorskip("pyroute2")
packet: Any = pytest.importorskip("scapy.packet")

try:
    UPF = str(binary("upf"))
except ConfigError as error:
    pytest.skip(str(error), allow_module_level=True)

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/net/tun").exists(), reason="needs root and /dev/net/tun"
)

PFCP_PORT, GTPU_PORT, APPLICATION_PORT = 8805, 2152, 6000
ACCEPTED, CONTEXT_NOT_FOUND = 1, 65
TEID, GNB_TEID, QFI, CP_SEID = 0x1001, 0x2002, 9, 0xABCDEF
STARTED = 3_900_000_000  # recovery time stamp: seconds since 1900
TIMEOUT_S = 5.0
PAYLOAD = b"from the terminal"
ANSWER = b"from the network"


@dataclass(frozen=True)
class Addresses:
    """One address family's addresses of the test."""

    version: int
    ran: str
    upf: str
    terminal: str
    pool: str
    server: str

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET if self.version == 4 else socket.AF_INET6

    @property
    def bits(self) -> int:
        return 32 if self.version == 4 else 128


IPV4 = Addresses(4, "10.100.0.1", "10.100.0.2", "10.60.0.1", "10.60.0.0/24", "10.103.0.2")
IPV6 = Addresses(6, "fd00:100::1", "fd00:100::2", "fd00:60::1", "fd00:60::/48", "fd00:103::2")
BOTH = pytest.mark.parametrize("outer", [IPV4, IPV6], ids=["outer-ipv4", "outer-ipv6"])


class Network:
    """Two namespaces joined by a veth pair: the SMF and the gNB are in one, the UPF and a server in the other."""

    def __init__(self) -> None:
        self.names = {side: f"spt-interop-{os.getpid()}-{side}" for side in ("ran", "upf")}
        self._handles: list[Any] = []

    def build(self) -> None:
        for name in self.names.values():
            pyroute2.netns.create(name)
        ran, upf = (pyroute2.NetNS(name, flags=0) for name in self.names.values())
        self._handles = [ran, upf]
        ran.link("add", ifname="n3", kind="veth", peer={"ifname": "n3", "net_ns_fd": self.names["upf"]})
        for handle, side in ((ran, "ran"), (upf, "upf")):
            (index,) = handle.link_lookup(ifname="n3")
            handle.link("set", index=1, state="up")
            handle.link("set", index=index, state="up")
            for family in (IPV4, IPV6):
                length = 24 if family is IPV4 else 64
                # IFA_F_NODAD: usable at once, without looking for duplicates first.
                options = {} if family is IPV4 else {"flags": 0x02, "family": socket.AF_INET6}
                handle.addr("add", index=index, address=getattr(family, side), prefixlen=length, **options)
                if side == "upf":
                    handle.addr("add", index=1, address=family.server, prefixlen=family.bits, **options)

    def remove(self) -> None:
        for handle in self._handles:
            handle.close()
        for name in self.names.values():
            with contextlib.suppress(FileNotFoundError):
                pyroute2.netns.remove(name)

    def udp(self, side: str, family: Addresses, address: str, port: int) -> socket.socket:
        """A bound UDP socket in a namespace."""
        from slicepilot.testbed.lifecycle.network import inside

        def bind() -> socket.socket:
            made = socket.socket(family.family, socket.SOCK_DGRAM)
            made.bind((address, port))
            made.settimeout(TIMEOUT_S)
            return made

        return inside(self.names[side], bind)

    def has_device(self, name: str) -> bool:
        return bool(self._handles[1].link_lookup(ifname=name))

    def delete_device(self, name: str) -> None:
        (index,) = self._handles[1].link_lookup(ifname=name)
        self._handles[1].link("del", index=index)

    def start_upf(self, *flags: str) -> subprocess.Popen[str]:
        command = ["nsenter", f"--net=/run/netns/{self.names['upf']}", UPF, *flags]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Peer:
    """An SMF and a gNB at one UPF."""

    def __init__(self, network: Network, outer: Addresses) -> None:
        self.outer = outer
        self.n4 = network.udp("ran", outer, outer.ran, PFCP_PORT)
        self.n3 = network.udp("ran", outer, outer.ran, GTPU_PORT)
        self.seq = 0
        self.seid = 0

    def close(self) -> None:
        self.n4.close()
        self.n3.close()

    def ask(self, body: Any, seid: int | None = None) -> Any:
        """Send a PFCP request and return the answer, which scapy must read without a rest."""
        self.seq += 1
        header = pfcp.PFCP(S=0, seq=self.seq) if seid is None else pfcp.PFCP(S=1, seid=seid, seq=self.seq)
        self.n4.sendto(bytes(header / body), (self.outer.upf, PFCP_PORT))
        answer = pfcp.PFCP(self.n4.recv(65536))
        assert answer.seq == self.seq
        assert answer.answers(header / body)
        assert packet.Raw not in answer, answer.show(dump=True)
        assert packet.Padding not in answer, answer.show(dump=True)
        return answer

    def associate(self) -> Any:
        elements = [self.node_id(), pfcp.IE_RecoveryTimeStamp(timestamp=STARTED)]
        answer = self.ask(pfcp.PFCPAssociationSetupRequest(IE_list=elements))
        assert answer[pfcp.IE_Cause].cause == ACCEPTED
        return answer

    def node_id(self) -> Any:
        if self.outer is IPV4:
            return pfcp.IE_NodeId(id_type="IPv4", ipv4=self.outer.ran)
        return pfcp.IE_NodeId(id_type="IPv6", ipv6=self.outer.ran)

    def fseid(self) -> Any:
        if self.outer is IPV4:
            return pfcp.IE_FSEID(v4=1, seid=CP_SEID, ipv4=self.outer.ran)
        return pfcp.IE_FSEID(v6=1, seid=CP_SEID, ipv6=self.outer.ran)

    def local_tunnel(self) -> Any:
        if self.outer is IPV4:
            return pfcp.IE_FTEID(V4=1, TEID=TEID, ipv4=self.outer.upf)
        return pfcp.IE_FTEID(V6=1, TEID=TEID, ipv6=self.outer.upf)

    def gnb_tunnel(self, teid: int = GNB_TEID) -> Any:
        if self.outer is IPV4:
            return pfcp.IE_OuterHeaderCreation(GTPUUDPIPV4=1, TEID=teid, ipv4=self.outer.ran)
        return pfcp.IE_OuterHeaderCreation(GTPUUDPIPV6=1, TEID=teid, ipv6=self.outer.ran)

    def rules(self, inner: Addresses, tunnel: Any, action: Any) -> list[Any]:
        """What an SMF sets up for a terminal with one QoS flow."""
        uplink, downlink = (ue_address(inner, destination=side) for side in (False, True))
        network = pfcp.IE_NetworkInstance(instance="internet")
        return [
            pfcp.IE_CreatePDR(
                IE_list=[
                    pfcp.IE_PDR_Id(id=1),
                    pfcp.IE_Precedence(precedence=100),
                    pfcp.IE_PDI(
                        IE_list=[
                            pfcp.IE_SourceInterface(interface="Access"),
                            tunnel,
                            network,
                            uplink,
                            pfcp.IE_SDF_Filter(FD=1, flow_description="permit out ip from any to assigned"),
                            pfcp.IE_QFI(QFI=QFI),
                        ]
                    ),
                    pfcp.IE_OuterHeaderRemoval(header=0 if self.outer is IPV4 else 1),
                    pfcp.IE_FAR_Id(id=1),
                    pfcp.IE_URR_Id(id=1),
                    pfcp.IE_QER_Id(id=1),
                ]
            ),
            pfcp.IE_CreatePDR(
                IE_list=[
                    pfcp.IE_PDR_Id(id=2),
                    pfcp.IE_Precedence(precedence=100),
                    pfcp.IE_PDI(IE_list=[pfcp.IE_SourceInterface(interface="Core"), network, downlink]),
                    pfcp.IE_FAR_Id(id=2),
                    pfcp.IE_URR_Id(id=1),
                    pfcp.IE_QER_Id(id=1),
                ]
            ),
            pfcp.IE_CreateFAR(
                IE_list=[
                    pfcp.IE_FAR_Id(id=1),
                    action,
                    pfcp.IE_ForwardingParameters(IE_list=[pfcp.IE_DestinationInterface(interface="Core"), network]),
                ]
            ),
            pfcp.IE_CreateFAR(
                IE_list=[
                    pfcp.IE_FAR_Id(id=2),
                    action,
                    pfcp.IE_ForwardingParameters(
                        IE_list=[pfcp.IE_DestinationInterface(interface="Access"), network, self.gnb_tunnel()]
                    ),
                ]
            ),
            pfcp.IE_CreateURR(
                IE_list=[
                    pfcp.IE_URR_Id(id=1),
                    pfcp.IE_MeasurementMethod(VOLUM=1),
                    pfcp.IE_ReportingTriggers(volume_threshold=1),
                    pfcp.IE_VolumeThreshold(TOVOL=1, total=1 << 30),
                ]
            ),
            pfcp.IE_CreateQER(
                IE_list=[
                    pfcp.IE_QER_Id(id=1),
                    pfcp.IE_GateStatus(ul="OPEN", dl="OPEN"),
                    pfcp.IE_MBR(ul=50_000, dl=50_000),
                    pfcp.IE_QFI(QFI=QFI),
                ]
            ),
        ]

    def establish(self, inner: Addresses, tunnel: Any | None = None, action: Any | None = None) -> Any:
        elements = [
            self.node_id(),
            self.fseid(),
            *self.rules(inner, tunnel or self.local_tunnel(), action or forward()),
            pfcp.IE_PDNType(pdn_type=1 if inner is IPV4 else 2),
        ]
        answer = self.ask(pfcp.PFCPSessionEstablishmentRequest(IE_list=elements), seid=0)
        assert answer[pfcp.IE_Cause].cause == ACCEPTED, answer.show(dump=True)
        assert answer.seid == CP_SEID
        self.seid = answer[pfcp.IE_FSEID].seid
        return answer

    def send_uplink(self, inner: Addresses, teid: int = TEID) -> bytes:
        """A packet of the terminal in the uplink tunnel; returns it."""
        network = inet.IP if inner is IPV4 else inet6.IPv6
        user = network(src=inner.terminal, dst=inner.server) / inet.UDP(sport=5000, dport=APPLICATION_PORT) / PAYLOAD
        tunnel = gtp.GTP_U_Header(teid=teid, next_ex=0x85, E=1) / gtp.GTPPDUSessionContainer(type=1, QFI=QFI)
        self.n3.sendto(bytes(tunnel / user), (self.outer.upf, GTPU_PORT))
        return bytes(user)


def forward() -> Any:
    """FORW, in the two octets of Release 16: scapy knows the first, the second one is zero."""
    return pfcp.IE_ApplyAction(FORW=1, extra_data=b"\x00")


def ue_address(inner: Addresses, destination: bool) -> Any:
    if inner is IPV4:
        return pfcp.IE_UE_IP_Address(V4=1, SD=int(destination), ipv4=inner.terminal)
    return pfcp.IE_UE_IP_Address(V6=1, SD=int(destination), ipv6=inner.terminal)


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    try:
        made.build()
        yield made
    finally:
        made.remove()


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


@contextlib.contextmanager
def peer_of(network: Network, outer: Addresses) -> Iterator[Peer]:
    with contextlib.closing(Peer(network, outer)) as peer:
        yield peer


@needs_root
@BOTH
@pytest.mark.parametrize("inner", [IPV4, IPV6], ids=["inner-ipv4", "inner-ipv6"])
def test_a_session_from_setup_to_deletion(network: Network, outer: Addresses, inner: Addresses) -> None:
    with running(network, outer), peer_of(network, outer) as peer:
        association = peer.associate()
        assert association[pfcp.IE_UPFunctionFeatures].FTUP == 1
        assert association[pfcp.IE_RecoveryTimeStamp].timestamp > STARTED
        peer.establish(inner)
        with network.udp("upf", inner, inner.server, APPLICATION_PORT) as server:
            sent = peer.send_uplink(inner)
            data, terminal = server.recvfrom(2048)
            assert (data, ip_address(terminal[0]), terminal[1]) == (PAYLOAD, ip_address(inner.terminal), 5000)

            server.sendto(ANSWER, terminal)
            tunnelled = gtp.GTP_U_Header(peer.n3.recv(2048))
        assert (tunnelled.teid, tunnelled.gtp_type) == (GNB_TEID, 255)
        container = tunnelled[gtp.GTPPDUSessionContainer]
        assert (container.type, container.QFI) == (0, QFI)
        inside = tunnelled[inet.IP if inner is IPV4 else inet6.IPv6]
        assert (inside.src, inside.dst, bytes(inside[inet.UDP].payload)) == (inner.server, inner.terminal, ANSWER)

        query = pfcp.IE_QueryURR(IE_list=[pfcp.IE_URR_Id(id=1)])
        answer = peer.ask(pfcp.PFCPSessionModificationRequest(IE_list=[query]), seid=peer.seid)
        volume = answer[pfcp.IE_UsageReport_SMR][pfcp.IE_VolumeMeasurement]
        assert (volume.uplink, volume.downlink) == (len(sent), len(bytes(inside)))
        assert volume.total == len(sent) + len(bytes(inside))

        answer = peer.ask(pfcp.PFCPSessionDeletionRequest(), seid=peer.seid)
        assert (answer[pfcp.IE_Cause].cause, answer.seid) == (ACCEPTED, CP_SEID)
        assert answer[pfcp.IE_UsageReport_SDR][pfcp.IE_VolumeMeasurement].total == 0
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


@needs_root
@BOTH
def test_the_upf_chooses_a_tunnel(network: Network, outer: Addresses) -> None:
    choose = pfcp.IE_FTEID(CHID=1, CH=1, V4=int(outer is IPV4), V6=int(outer is IPV6), choose_id=5)
    with running(network, outer), peer_of(network, outer) as peer:
        peer.associate()
        answer = peer.establish(IPV4, tunnel=choose)
        created = answer[pfcp.IE_CreatedPDR]
        assert created[pfcp.IE_PDR_Id].id == 1
        tunnel = created[pfcp.IE_FTEID]
        assert ip_address(tunnel.ipv4 if outer is IPV4 else tunnel.ipv6) == ip_address(outer.upf)
        with network.udp("upf", IPV4, IPV4.server, APPLICATION_PORT) as server:
            peer.send_uplink(IPV4, teid=tunnel.TEID)
            assert server.recv(2048) == PAYLOAD


@needs_root
def test_one_octet_of_apply_action_and_a_handover(network: Network) -> None:
    with running(network, IPV4), peer_of(network, IPV4) as peer:
        peer.associate()
        peer.establish(IPV4, action=pfcp.IE_ApplyAction(FORW=1))
        with network.udp("upf", IPV4, IPV4.server, APPLICATION_PORT) as server:
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
            marker = gtp.GTP_U_Header(peer.n3.recv(2048))
            assert (marker.gtp_type, marker.teid) == (254, GNB_TEID)
            server.sendto(ANSWER, (IPV4.terminal, 5000))
            assert gtp.GTP_U_Header(peer.n3.recv(2048)).teid == 0x3003


@needs_root
def test_buffering_and_downlink_data_report(network: Network) -> None:
    with running(network, IPV4), peer_of(network, IPV4) as peer:
        peer.associate()
        peer.establish(IPV4)
        idle = pfcp.IE_UpdateFAR(
            IE_list=[pfcp.IE_FAR_Id(id=2), pfcp.IE_ApplyAction(BUFF=1, NOCP=1, extra_data=b"\x00")]
        )
        peer.ask(pfcp.PFCPSessionModificationRequest(IE_list=[idle]), seid=peer.seid)
        with network.udp("upf", IPV4, IPV4.server, APPLICATION_PORT) as server:
            for number in range(3):
                server.sendto(bytes([number]), (IPV4.terminal, 5000))
        report = pfcp.PFCP(peer.n4.recv(2048))
        assert (report.message_type, report.seid) == (56, CP_SEID)
        elements = bytes(report.payload)
        # Report Type with DLDR, then a Downlink Data Report that names PDR 2 (clauses 8.2.21 and 7.5.8.2).
        assert elements == bytes.fromhex("0027000101" + "00530006" + "003800020002")
        accepted = pfcp.PFCP(S=1, seid=peer.seid, seq=report.seq, message_type=57) / pfcp.IE_Cause(cause=ACCEPTED)
        peer.n4.sendto(bytes(accepted), (IPV4.upf, PFCP_PORT))
        active = pfcp.IE_UpdateFAR(IE_list=[pfcp.IE_FAR_Id(id=2), forward()])
        peer.ask(pfcp.PFCPSessionModificationRequest(IE_list=[active]), seid=peer.seid)
        for number in range(3):
            assert bytes(gtp.GTP_U_Header(peer.n3.recv(2048))[inet.UDP].payload) == bytes([number])


@needs_root
@BOTH
def test_path_management(network: Network, outer: Addresses) -> None:
    with running(network, outer), peer_of(network, outer) as peer:
        peer.n3.sendto(bytes(gtp.GTP_U_Header(seq=77, S=1) / gtp.GTPEchoRequest()), (outer.upf, GTPU_PORT))
        answer = gtp.GTP_U_Header(peer.n3.recv(2048))
        assert (answer.gtp_type, answer.seq) == (2, 77)
        assert bytes(answer[gtp.GTPEchoResponse]) == b"\x0e\x00"  # Recovery 0

        heartbeat = pfcp.PFCPHeartbeatRequest(IE_list=[pfcp.IE_RecoveryTimeStamp(timestamp=STARTED)])
        assert peer.ask(heartbeat)[pfcp.IE_RecoveryTimeStamp].timestamp > STARTED


@needs_root
def test_noise_does_not_harm(network: Network) -> None:
    noise = [b"", b"\x00", b"\x34\xff" + bytes(30), b"\x20\x01" + bytes(range(60)), b"\x21\x32" + bytes(40)]
    version_2 = b"\x40\x01\x00\x04" + bytes(4)
    with running(network, IPV4), peer_of(network, IPV4) as peer:
        for octets in [*noise, version_2]:
            peer.n3.sendto(octets, (IPV4.upf, GTPU_PORT))
            peer.n4.sendto(octets, (IPV4.upf, PFCP_PORT))
        assert peer.n4.recv(2048)[1] == 11  # Version Not Supported, for the last one alone
        peer.associate()
        peer.establish(IPV4)
        with network.udp("upf", IPV4, IPV4.server, APPLICATION_PORT) as server:
            peer.send_uplink(IPV4)
            assert server.recv(2048) == PAYLOAD


@needs_root
def test_stops_with_its_counters_and_removes_the_device(network: Network) -> None:
    with running(network, IPV4, "--stats-interval", "50ms", "--tun", "uetun", "--tun-mtu", "1300") as upf:
        assert network.has_device("uetun")
        with peer_of(network, IPV4) as peer:
            peer.associate()
            peer.establish(IPV4)
            with network.udp("upf", IPV4, IPV4.server, APPLICATION_PORT) as server:
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


@needs_root
def test_a_second_upf_on_the_same_device_says_so(network: Network) -> None:
    with running(network, IPV4):
        second = network.start_upf("--n4", "127.0.0.1", "--n3", "127.0.0.1")
        _, error = second.communicate(timeout=TIMEOUT_S)
        assert second.returncode == 1
        assert error == "upf: TUN device tun: TUNSETIFF: device or resource busy: it exists already\n"


@needs_root
def test_a_device_that_vanishes_ends_the_upf(network: Network) -> None:
    with running(network, IPV4) as upf:
        network.delete_device("tun")
        output, error = upf.communicate(timeout=TIMEOUT_S)
        assert upf.returncode == 1
        assert "upf: downlink: read TUN: file descriptor in bad state" in error
        assert json.loads(output.splitlines()[-1])["event"] == "stopped"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ([], '--n4 ""'),
        (["--n4", "127.0.0.1"], '--n3 ""'),
        (["--n4", "127.0.0.1", "--n3", "0.0.0.0"], "--n3 0.0.0.0"),
        (["--n4", "0.0.0.0", "--n3", "127.0.0.1"], "--n4 0.0.0.0"),
        (["--n4", "localhost", "--n3", "127.0.0.1"], '--n4 "localhost"'),
        (["--n4", "127.0.0.1", "--n3", "127.0.0.1", "--ue-pool", "10.60.0.1"], '--ue-pool "10.60.0.1"'),
        (["--n4", "127.0.0.1", "--n3", "127.0.0.1", "--burn-ns", "-1"], "--burn-ns -1"),
        (["--n4", "127.0.0.1", "--n3", "127.0.0.1", "--tun", "a-name-that-is-too-long"], "--tun"),
        (["--n4", "127.0.0.1", "--n3", "127.0.0.1", "--node-id", "upf"], '--node-id "upf"'),
        (["--speed"], "speed"),
        (["go"], '"go"'),
    ],
)
def test_bad_flags(flags: list[str], named: str) -> None:
    result = subprocess.run([UPF, *flags], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert named in result.stderr
    assert "accepted:" in result.stderr
