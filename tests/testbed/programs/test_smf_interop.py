"""The SMF against a UPF that shares no code with it: scapy builds and reads the messages, over loopback.

What the SMF sends must parse without a rest, and hold to 3GPP TS 29.244 where scapy (which follows Release 15) or the
library the SMF is built on says nothing: those checks look at the octets.
"""

import contextlib
import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .built import built
from .scapy_upf import ACCEPTED, CONTEXT_NOT_FOUND, DELETION, IE, MODIFICATION, Upf

pfcp: Any = pytest.importorskip("scapy.contrib.pfcp")

SMF = built("smf")

SESSION: dict[str, Any] = {
    "session": "a",
    "ue": "10.60.0.2",
    "teid": 17,
    "n3": "10.100.0.2",
    "gnb": "10.100.0.1",
    "gnb_teid": 1001,
    "qfi": 9,
    "sst": 2,
    "sd": "0a0b0c",
    "dnn": "video.slices",
    "mbr_ul_mbps": 50,
    "mbr_dl_mbps": 20.5,
}


class Smf:
    """The program, which takes orders line by line."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [SMF, "--n4=127.0.0.1:0", "--script=-", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.ready = self.read()
        assert self.ready["event"] == "ready"

    def send(self, op: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def upf() -> Iterator[Upf]:
    far_end = Upf()
    yield far_end
    far_end.socket.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Smf]]:
    running: list[Smf] = []

    def run(*flags: str) -> Smf:
        running.append(Smf(*flags))
        return running[-1]

    yield run
    for smf in running:
        smf.close()


def associated(start: Callable[..., Smf], upf: Upf, *flags: str, **features: int) -> Smf:
    smf = start("--heartbeat=0", *flags)
    smf.send("associate", upf=upf.address)
    upf.associate(**features)
    assert smf.read()["ok"]
    return smf


def with_session(start: Callable[..., Smf], upf: Upf, *flags: str, seid: int = 77) -> Smf:
    smf = associated(start, upf, *flags)
    smf.send("establish", upf=upf.address, **SESSION)
    upf.establish(seid)
    assert smf.read()["ok"]
    return smf


def unread(message: Any) -> list[Any]:
    """What scapy could not make sense of, at any depth."""
    result = []
    for element in getattr(message, "IE_list", []):
        if isinstance(element, pfcp.IE_NotImplemented):
            result.append((element.ietype, bytes(element.data)))
        elif getattr(element, "extra_data", b""):
            result.append((element.ietype, bytes(element.extra_data)))
        result += unread(element)
    return result


def test_association_setup(start: Callable[..., Smf], upf: Upf) -> None:
    smf = start("--heartbeat=0", "--node-id=smf.example.org")
    smf.send("associate", upf=upf.address, id=5)
    message = upf.associate()
    answer = smf.read()
    assert answer["ok"]
    assert answer["cause"] == ACCEPTED
    assert answer["id"] == 5
    assert answer["attempts"] == 1
    assert answer["rtt_us"] > 0
    assert message.S == 0
    assert unread(message) == []
    # A domain name as labels (clause 8.2.38), behind the type 2.
    assert upf.elements.only(IE.NODE_ID) == b"\x02\x03smf\x07example\x03org"
    at = int.from_bytes(upf.elements.only(IE.RECOVERY_TIME_STAMP), "big") - 2_208_988_800
    assert abs(at - time.time()) < 60


def test_session_establishment_holds_to_the_specification(start: Callable[..., Smf], upf: Upf) -> None:
    smf = associated(start, upf)
    smf.send("establish", upf=upf.address, **SESSION)
    message = upf.establish(77)
    answer = smf.read()
    assert (answer["ok"], answer["teid"], answer["n3"]) == (True, 17, "10.100.0.2")
    # The UPF's SEID is not known yet: present, and 0 (clause 7.2.2.4.2).
    assert (message.S, message.seid) == (1, 0)
    # Scapy is of Release 15: it has no S-NSSAI, and Apply Action had an octet less.
    assert unread(message) == [(44, b"\0"), (44, b"\0"), (IE.S_NSSAI, b"\x02\x0a\x0b\x0c")]
    elements = upf.elements
    assert elements.kinds[:2] == [IE.NODE_ID, IE.F_SEID]
    assert elements.only(IE.F_SEID)[:1] == b"\x02"  # V4
    assert elements.only(IE.F_SEID)[9:] == bytes([127, 0, 0, 1])
    assert elements.only(IE.PDN_TYPE) == b"\x01"
    assert elements.only(IE.APN_DNN) == b"\x05video\x06slices"
    uplink, downlink = elements.all(IE.CREATE_PDR)
    for pdr in (uplink, downlink):  # mandatory and conditional elements of clause 7.5.2.2
        assert {IE.PDR_ID, IE.PRECEDENCE, IE.PDI, IE.FAR_ID, IE.QER_ID} <= set(pdr.kinds)
        assert pdr.only(IE.PDI).only(IE.NETWORK_INSTANCE) == b"\x05video\x06slices"
    assert uplink.only(IE.PDI).only(IE.SOURCE_INTERFACE) == b"\x00"
    assert uplink.only(IE.PDI).only(IE.F_TEID) == b"\x01" + (17).to_bytes(4, "big") + bytes([10, 100, 0, 2])
    assert uplink.only(IE.PDI).only(IE.UE_IP_ADDRESS) == b"\x02" + bytes([10, 60, 0, 2])  # source: S/D 0
    assert uplink.only(IE.PDI).only(IE.QFI) == b"\x09"
    assert uplink.only(IE.OUTER_HEADER_REMOVAL)[:1] == b"\x00"  # GTP-U/UDP/IPv4
    assert downlink.only(IE.PDI).only(IE.SOURCE_INTERFACE) == b"\x01"
    assert downlink.only(IE.PDI).only(IE.UE_IP_ADDRESS) == b"\x06" + bytes([10, 60, 0, 2])  # destination: S/D 1
    assert IE.OUTER_HEADER_REMOVAL not in downlink.kinds
    to_core, to_access = elements.all(IE.CREATE_FAR)
    assert [far.only(IE.APPLY_ACTION) for far in (to_core, to_access)] == [b"\x02\0", b"\x02\0"]  # FORW
    assert to_core.only(IE.FORWARDING).only(IE.DESTINATION_INTERFACE) == b"\x01"
    assert to_access.only(IE.FORWARDING).only(IE.DESTINATION_INTERFACE) == b"\x00"
    header = to_access.only(IE.FORWARDING).only(IE.OUTER_HEADER_CREATION)
    assert header == b"\x01\0" + (1001).to_bytes(4, "big") + bytes([10, 100, 0, 1])
    qer = elements.only(IE.CREATE_QER)
    assert qer.only(IE.GATE_STATUS) == b"\0"
    assert qer.only(IE.MBR) == (50_000).to_bytes(5, "big") + (20_500).to_bytes(5, "big")  # kbit/s, uplink first
    assert qer.only(IE.QFI) == b"\x09"
    for pdr, far in ((uplink, to_core), (downlink, to_access)):
        assert pdr.only(IE.FAR_ID) == far.only(IE.FAR_ID)
        assert pdr.only(IE.QER_ID) == qer.only(IE.QER_ID)
    assert uplink.only(IE.PDR_ID) != downlink.only(IE.PDR_ID)


def test_ipv6_session(start: Callable[..., Smf], upf: Upf) -> None:
    smf = associated(start, upf)
    addresses = {"ue": "2001:db8:1::2", "n3": "2001:db8:2::2", "gnb": "2001:db8:2::1"}
    smf.send("establish", upf=upf.address, **{**SESSION, **addresses})
    message = upf.establish(1)
    assert smf.read()["ok"]
    assert {kind for kind, _ in unread(message)} == {44, IE.S_NSSAI}
    elements = upf.elements
    uplink, downlink = elements.all(IE.CREATE_PDR)
    n3 = socket.inet_pton(socket.AF_INET6, "2001:db8:2::2")
    assert uplink.only(IE.PDI).only(IE.F_TEID) == b"\x02" + (17).to_bytes(4, "big") + n3
    assert uplink.only(IE.OUTER_HEADER_REMOVAL)[:1] == b"\x01"  # GTP-U/UDP/IPv6
    assert downlink.only(IE.PDI).only(IE.UE_IP_ADDRESS) == b"\x05" + socket.inet_pton(socket.AF_INET6, "2001:db8:1::2")
    header = elements.all(IE.CREATE_FAR)[1].only(IE.FORWARDING).only(IE.OUTER_HEADER_CREATION)
    assert header == b"\x02\0" + (1001).to_bytes(4, "big") + socket.inet_pton(socket.AF_INET6, "2001:db8:2::1")
    assert elements.only(IE.PDN_TYPE) == b"\x02"


def test_the_upf_chooses_the_tunnel(start: Callable[..., Smf], upf: Upf) -> None:
    smf = associated(start, upf, FTUP=1)
    smf.send("establish", upf=upf.address, session="a", ue="10.60.0.2", gnb="10.100.0.1", gnb_teid=5)
    chosen = pfcp.IE_FTEID(V4=1, TEID=0xABCD, ipv4="10.100.0.2")
    message = upf.establish(1, pfcp.IE_CreatedPDR(IE_list=[pfcp.IE_PDR_Id(id=1), chosen]))
    answer = smf.read()
    assert (answer["teid"], answer["n3"]) == (0xABCD, "10.100.0.2")
    assert unread(message)
    uplink = upf.elements.all(IE.CREATE_PDR)[0]
    assert uplink.only(IE.PDI).only(IE.F_TEID) == b"\x05"  # CH and V4, and nothing else
    assert IE.S_NSSAI not in upf.elements.kinds


def test_modification_and_deletion(start: Callable[..., Smf], upf: Upf) -> None:
    smf = with_session(start, upf)
    smf.send("modify", session="a", mbr_ul_mbps=30, gate_dl="closed")
    message = upf.accept(MODIFICATION)
    assert message.seid == 77
    assert unread(message) == []
    assert smf.read()["ok"]
    elements = upf.elements
    assert elements.only(IE.UPDATE_QER).only(IE.GATE_STATUS) == b"\x01"  # uplink open, downlink closed
    assert elements.only(IE.UPDATE_QER).only(IE.MBR) == (30_000).to_bytes(5, "big") + (20_500).to_bytes(5, "big")
    smf.send("delete", session="a")
    message = upf.accept(DELETION)
    assert message.seid == 77
    assert smf.read()["ok"]
    smf.send("delete", session="a")
    assert not smf.read()["ok"], "twice"
    smf.send("release", upf=upf.address)
    message = upf.receive()
    assert pfcp.PFCPAssociationReleaseRequest in message
    upf.send(
        pfcp.PFCPAssociationReleaseResponse(IE_list=[upf.node(), pfcp.IE_Cause(cause=ACCEPTED)]),
        message.seq,
    )
    assert smf.read()["ok"]


def test_heartbeats_both_ways(start: Callable[..., Smf], upf: Upf) -> None:
    smf = start("--heartbeat=50ms")
    smf.send("associate", upf=upf.address)
    upf.associate()
    message = upf.receive(skip_heartbeats=False)
    assert pfcp.PFCPHeartbeatRequest in message
    assert IE.RECOVERY_TIME_STAMP in upf.elements.kinds
    upf.send(pfcp.PFCPHeartbeatResponse(IE_list=[upf.recovery()]), message.seq)
    upf.send(pfcp.PFCPHeartbeatRequest(IE_list=[upf.recovery()]), 4242)
    while pfcp.PFCPHeartbeatResponse not in (message := upf.receive(skip_heartbeats=False)):
        upf.send(pfcp.PFCPHeartbeatResponse(IE_list=[upf.recovery()]), message.seq)
    assert message.seq == 4242
    assert IE.RECOVERY_TIME_STAMP in upf.elements.kinds


def test_session_report_is_answered(start: Callable[..., Smf], upf: Upf) -> None:
    smf = associated(start, upf)
    smf.send("establish", upf=upf.address, **SESSION)
    message = upf.establish(77)
    assert smf.read()["ok"]
    own = next(element.seid for element in message.IE_list if isinstance(element, pfcp.IE_FSEID))
    downlink = pfcp.IE_DownlinkDataReport(IE_list=[pfcp.IE_PDR_Id(id=2)])
    report = pfcp.PFCPSessionReportRequest(IE_list=[pfcp.IE_ReportType(DLDR=1), downlink])
    upf.send(report, 9, own)
    answer = upf.receive()
    assert pfcp.PFCPSessionReportResponse in answer
    assert (answer.seq, answer.seid) == (9, 77)
    assert [element.cause for element in answer.IE_list] == [ACCEPTED]
    upf.send(report, 10, own + 1)
    answer = upf.receive()
    assert [element.cause for element in answer.IE_list] == [CONTEXT_NOT_FOUND]


def test_sessions_and_associations_end_at_sigterm(start: Callable[..., Smf], upf: Upf) -> None:
    smf = with_session(start, upf)
    smf.process.send_signal(signal.SIGTERM)
    upf.accept(DELETION)
    message = upf.receive()
    assert pfcp.PFCPAssociationReleaseRequest in message
    answer = pfcp.PFCPAssociationReleaseResponse(IE_list=[upf.node(), pfcp.IE_Cause(cause=ACCEPTED)])
    upf.send(answer, message.seq)
    assert smf.process.wait(5) == 0
