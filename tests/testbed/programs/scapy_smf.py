"""An SMF, a gNB, a terminal and a server in one: scapy builds and reads every message, in a namespace of its own."""

import contextlib
import os
import socket
import subprocess
from dataclasses import dataclass
from typing import Any

import pytest

from .built import built

pfcp: Any = pytest.importorskip("scapy.contrib.pfcp")
gtp: Any = pytest.importorskip("scapy.contrib.gtp")
inet: Any = pytest.importorskip("scapy.layers.inet")
inet6: Any = pytest.importorskip("scapy.layers.inet6")
pyroute2: Any = pytest.importorskip("pyroute2")
packet: Any = pytest.importorskip("scapy.packet")


UPF = built("upf")

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
N6_ADDRESS, N6_ADDRESS6 = "10.102.0.1", "fd00:102::1"
BOTH = pytest.mark.parametrize("outer", [IPV4, IPV6], ids=["outer-ipv4", "outer-ipv6"])


class Network:
    """Three namespaces joined by veth pairs: SMF and gNB, the UPF, and a server behind its N6."""

    def __init__(self) -> None:
        self.names = {side: f"spt-interop-{os.getpid()}-{side}" for side in ("ran", "upf", "dn")}
        self._handles: list[Any] = []

    def build(self) -> None:
        for name in self.names.values():
            pyroute2.netns.create(name)
        ran, upf = (pyroute2.NetNS(self.names[side], flags=0) for side in ("ran", "upf"))
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
        self._build_n6()

    def _build_n6(self) -> None:
        self.sh("upf", f"ip link add n6 type veth peer name n6 netns {self.names['dn']}; ip link set n6 up")
        self.sh("upf", "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
        self.sh("dn", "ip link set lo up; ip link set n6 up")
        for family, inside, outside, length in (
            (IPV4, N6_ADDRESS, "10.102.0.2", 24),
            (IPV6, N6_ADDRESS6, "fd00:102::2", 64),
        ):
            ip, nodad = f"ip -{family.version}", "nodad" * (family is IPV6)
            self.sh("upf", f"{ip} addr add {inside}/{length} dev n6 {nodad}")
            self.sh(
                "dn", f"{ip} addr add {outside}/{length} dev n6 {nodad}; {ip} addr add {family.server} dev lo {nodad}"
            )
            self.sh("dn", f"{ip} route add default via {inside}")
            self.sh("upf", f"{ip} route add {family.server} via {outside}")

    def sh(self, side: str, commands: str) -> None:
        """Run shell commands in a namespace."""
        subprocess.run(["nsenter", f"--net=/run/netns/{self.names[side]}", "sh", "-ec", commands], check=True)

    def remove(self) -> None:
        for handle in self._handles:
            handle.close()
        for name in self.names.values():
            with contextlib.suppress(FileNotFoundError):
                pyroute2.netns.remove(name)

    def udp(self, side: str, family: Addresses, address: str, port: int) -> socket.socket:
        """A bound UDP socket in a namespace."""
        from slicepilot.controller.system.net.namespaces import inside

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

    def send_uplink(
        self,
        inner: Addresses,
        teid: int = TEID,
        *,
        to: str | None = None,
        port: int = APPLICATION_PORT,
        payload: bytes = PAYLOAD,
    ) -> bytes:
        """A packet of the terminal in the uplink tunnel, to the server by default; returns it."""
        network = inet.IP if inner is IPV4 else inet6.IPv6
        user = network(src=inner.terminal, dst=to or inner.server) / inet.UDP(sport=5000, dport=port) / payload
        tunnel = gtp.GTP_U_Header(teid=teid, next_ex=0x85, E=1) / gtp.GTPPDUSessionContainer(type=1, QFI=QFI)
        self.n3.sendto(bytes(tunnel / user), (self.outer.upf, GTPU_PORT))
        return bytes(user)


def forward() -> Any:
    """FORW, in the two octets of Release 16: scapy knows the first, the second is zero."""
    return pfcp.IE_ApplyAction(FORW=1, extra_data=b"\x00")


def ue_address(inner: Addresses, destination: bool) -> Any:
    if inner is IPV4:
        return pfcp.IE_UE_IP_Address(V4=1, SD=int(destination), ipv4=inner.terminal)
    return pfcp.IE_UE_IP_Address(V6=1, SD=int(destination), ipv6=inner.terminal)
