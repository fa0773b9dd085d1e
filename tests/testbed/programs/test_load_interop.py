"""What load sends, read by scapy, which shares no code with it; and what load makes of bad input."""

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .built import built

pytest.importorskip("scapy")

from scapy.contrib.gtp import GTP_U_Header, GTPPDUSessionContainer
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6

LOAD = built("load")

PACKETS_PER_S = 300  # scapy takes milliseconds for each
V4 = {"from": "127.0.0.1", "to": "127.0.0.1", "ue": "10.60.0.2", "dst": "10.103.0.2:6000"}
V6 = {"from": "[::1]", "to": "[::1]", "ue": "2001:db8:1::2", "dst": "[2001:db8:2::1]:6000"}


def free_port(family: int, host: str) -> int:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def send(addresses: dict[str, str], flags: tuple[str, ...] = (), **fields: Any) -> tuple[list[bytes], dict[str, Any]]:
    """Run load for 0.2 s against a socket: the datagrams that came, and its report."""
    family, host = (socket.AF_INET6, "::1") if "::1" in addresses["to"] else (socket.AF_INET, "127.0.0.1")
    with socket.socket(family, socket.SOCK_DGRAM) as far_end:
        far_end.bind((host, 0))
        far_end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        flow = {"kind": "cbr", "rate": 4, "teid": 0x11223344, "qfi": 9, **fields}
        flow |= {
            "from": f"{addresses['from']}:{free_port(family, host)}",
            "ue": addresses["ue"],
            "dst": addresses["dst"],
        }
        flow["to"] = f"{addresses['to']}:{far_end.getsockname()[1]}"
        text = ",".join(f"{key}={value}" for key, value in flow.items() if value is not None)
        command = [LOAD, "--flow", text, "--duration=200ms", "--json", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert [line["event"] for line in lines] == ["ready", "report"]
        far_end.settimeout(0.2)
        datagrams = []
        while True:
            try:
                datagrams.append(far_end.recv(9000))
            except TimeoutError:
                return datagrams, lines[-1]


def inner_packets(datagrams: list[bytes], layer: Any) -> list[Any]:
    """The inner packets, with checksums and lengths as they were sent checked against those scapy computes."""
    packets = []
    for datagram in datagrams:
        header = GTP_U_Header(datagram)
        assert (header.version, header.PT, header.gtp_type) == (1, 1, 255)
        assert header.length == len(datagram) - 8
        inner = header[layer]
        again = inner.copy()
        for part, field in ((layer, "chksum"), (UDP, "chksum"), (UDP, "len")):
            if field in getattr(again[part], "fields", {}):
                again[part].delfieldval(field)
        assert bytes(again) == bytes(inner)
        packets.append(inner)
    return packets


@pytest.mark.parametrize("packet_bytes", [52, 53, 1400])
@pytest.mark.parametrize("kind", ["video", "cbr", "poisson"])
def test_ipv4_packets(kind: str, packet_bytes: int) -> None:
    datagrams, report = send(V4, kind=kind, bytes=packet_bytes, rate=8e-6 * packet_bytes * PACKETS_PER_S, seed=2)
    flow = report["flows"][0]
    assert len(datagrams) == flow["packets"] > 0
    assert flow["bytes"] == flow["packets"] * packet_bytes
    for header in map(GTP_U_Header, datagrams):
        container = header[GTPPDUSessionContainer]
        assert (header.teid, container.type, container.QFI) == (0x11223344, 1, 9)  # uplink
    for number, packet in enumerate(inner_packets(datagrams, IP)):
        assert (packet.src, packet.dst, packet.len) == ("10.60.0.2", "10.103.0.2", packet_bytes)
        assert (packet.flags, packet.id, packet.ttl) == ("DF", 0, 64)
        assert (packet[UDP].sport, packet[UDP].dport) == (40000, 6000)
        payload = bytes(packet[UDP].payload)
        assert int.from_bytes(payload[8:16], "big") == number
        assert payload[24:] == bytes(packet_bytes - 52)


def test_ipv6_in_ipv6() -> None:
    datagrams, report = send(V6, bytes=1001)
    assert len(datagrams) == report["flows"][0]["packets"] > 0
    for packet in inner_packets(datagrams, IPv6):
        assert (packet.src, packet.dst, packet.plen) == ("2001:db8:1::2", "2001:db8:2::1", 961)
        assert packet[UDP].chksum != 0


def test_without_a_container() -> None:
    datagrams, _ = send(V4, qfi=None)
    assert all(GTPPDUSessionContainer not in GTP_U_Header(datagram) for datagram in datagrams)
    assert all(packet.id == 0 for packet in inner_packets(datagrams, IP))


def test_packets_of_a_trace(tmp_path: Path) -> None:
    """Sizes and order as in the file; what is larger than a packet may be is sent in several."""
    sizes = [60, 700, 1400, 61, 2800]
    (tmp_path / "trace.csv").write_text("time_s,bytes\n" + "".join(f"{0.01 * i},{s}\n" for i, s in enumerate(sizes)))
    datagrams, report = send(V4, kind="trace", rate=None, trace=str(tmp_path / "trace.csv"), loop="true")
    seen = [len(packet) for packet in inner_packets(datagrams, IP)]
    assert seen[:12] == [60, 700, 1400, 61, 1400, 1400] * 2
    assert report["flows"][0]["kind"] == "trace"
