"""A UPF of which only N4 is there: scapy builds its messages; elements are read from octets as well (TS 29.244)."""

import socket
from typing import Any

import pytest

pfcp: Any = pytest.importorskip("scapy.contrib.pfcp")


MODIFICATION, DELETION = 52, 54  # request types (clause 7.3)
ACCEPTED, CONTEXT_NOT_FOUND = 1, 65


class IE:
    """IE types by name, TS 29.244 table 8.1.2-1."""

    CREATE_PDR, PDI, CREATE_FAR, FORWARDING, CREATE_QER = 1, 2, 3, 4, 7
    UPDATE_FAR, UPDATE_FORWARDING, UPDATE_QER = 10, 11, 14
    SOURCE_INTERFACE, F_TEID, NETWORK_INSTANCE, GATE_STATUS, MBR = 20, 21, 22, 25, 26
    PRECEDENCE, DESTINATION_INTERFACE, APPLY_ACTION, PDR_ID, F_SEID = 29, 42, 44, 56, 57
    NODE_ID, OUTER_HEADER_CREATION = 60, 84
    UE_IP_ADDRESS, OUTER_HEADER_REMOVAL, RECOVERY_TIME_STAMP, FAR_ID, QER_ID = 93, 95, 96, 108, 109
    PDN_TYPE, QFI, APN_DNN, S_NSSAI = 113, 124, 159, 257
    GROUPED = (CREATE_PDR, PDI, CREATE_FAR, FORWARDING, CREATE_QER, UPDATE_FAR, UPDATE_FORWARDING, UPDATE_QER)


class Elements:
    """Information elements read from octets (clause 8.1.1), in order; grouped elements hold `Elements`."""

    def __init__(self, octets: bytes) -> None:
        self.items: list[tuple[int, Any]] = []
        while octets:
            kind, length = int.from_bytes(octets[:2], "big"), int.from_bytes(octets[2:4], "big")
            value = octets[4 : 4 + length]
            assert len(value) == length, f"IE {kind} is cut short"
            self.items.append((kind, Elements(value) if kind in IE.GROUPED else value))
            octets = octets[4 + length :]

    def all(self, kind: int) -> list[Any]:
        return [value for result, value in self.items if result == kind]

    def only(self, kind: int) -> Any:
        (value,) = self.all(kind)
        return value

    @property
    def kinds(self) -> list[int]:
        return [kind for kind, _ in self.items]


class Upf:
    """The far end of N4, scripted by each test."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(5)
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.started = 3_900_000_000  # recovery time stamp: seconds since 1900
        self.raw = b""
        self.smf: Any = None

    def receive(self, skip_heartbeats: bool = True) -> Any:
        """The next request, parsed by scapy."""
        while True:
            self.raw, self.smf = self.socket.recvfrom(65535)
            message = pfcp.PFCP(self.raw)
            assert message.version == 1
            assert message.length == len(self.raw) - 4
            if skip_heartbeats and pfcp.PFCPHeartbeatRequest in message:
                self.send(pfcp.PFCPHeartbeatResponse(IE_list=[self.recovery()]), message.seq)
                continue
            return message

    @property
    def elements(self) -> Elements:
        """The elements of the last request."""
        return Elements(self.raw[16 if self.raw[0] & 1 else 8 :])

    def send(self, body: Any, seq: int, seid: int | None = None) -> bytes:
        header = pfcp.PFCP(version=1, S=0, seq=seq) if seid is None else pfcp.PFCP(version=1, S=1, seid=seid, seq=seq)
        octets = bytes(header / body)
        self.socket.sendto(octets, self.smf)
        return octets

    def recovery(self) -> Any:
        return pfcp.IE_RecoveryTimeStamp(timestamp=self.started)

    def node(self) -> Any:
        return pfcp.IE_NodeId(id_type=0, ipv4="127.0.0.1")

    def associate(self, **features: int) -> Any:
        """Accept an association."""
        message = self.receive()
        assert pfcp.PFCPAssociationSetupRequest in message
        elements = [self.node(), pfcp.IE_Cause(cause=ACCEPTED), self.recovery(), pfcp.IE_UPFunctionFeatures(**features)]
        self.send(pfcp.PFCPAssociationSetupResponse(IE_list=elements), message.seq)
        return message

    def establish(self, seid: int, *further: Any) -> Any:
        """Accept a session."""
        message = self.receive()
        assert pfcp.PFCPSessionEstablishmentRequest in message
        f_seid = next(element for element in message.IE_list if isinstance(element, pfcp.IE_FSEID))
        own = pfcp.IE_FSEID(v4=1, seid=seid, ipv4="127.0.0.1")
        elements = [self.node(), pfcp.IE_Cause(cause=ACCEPTED), own, *further]
        self.send(pfcp.PFCPSessionEstablishmentResponse(IE_list=elements), message.seq, f_seid.seid)
        return message

    def accept(self, kind: int, *further: Any) -> Any:
        """Accept another request of a session. One to delete has no elements, and so no layer in scapy."""
        message = self.receive()
        assert message.message_type == kind
        answer = {MODIFICATION: pfcp.PFCPSessionModificationResponse, DELETION: pfcp.PFCPSessionDeletionResponse}[kind]
        self.send(answer(IE_list=[pfcp.IE_Cause(cause=ACCEPTED), *further]), message.seq, 0)
        return message
