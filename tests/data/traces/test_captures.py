"""Packets from captures that scapy wrote, which shares no code with the reader."""

import contextlib
import struct
from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.configs import ConfigError
from slicepilot.data.captures import is_capture
from slicepilot.data.traces.captures import Chosen, read_packets
from slicepilot.data.traces.trace import PacketTrace

pytest.importorskip("scapy")
from scapy.contrib.gtp import GTP_U_Header, GTPPDUSessionContainer
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, CookedLinux, Dot1Q, Ether
from scapy.utils import PcapNgWriter, PcapWriter

ALL = Chosen()
START = 1_700_000_000.25


def inner(source: str, size: int) -> Any:
    layer = IPv6(src=source, dst="2001:db8::1") if ":" in source else IP(src=source, dst="10.103.0.2")
    header = 40 if ":" in source else 20
    return layer / UDP(sport=1000, dport=2000) / bytes(size - header - 8)


def tunnelled(packet: Any, teid: int, session: bool = True) -> Any:
    outer = IP(src="10.1.0.1", dst="10.1.0.2") / UDP(sport=2152, dport=2152)
    header = GTP_U_Header(teid=teid, gtp_type=255)
    return outer / (header / GTPPDUSessionContainer(type=1, QFI=9) if session else header) / packet


def capture(
    packets: Sequence[Any], folder: Path, *, link: int = 1, nano: bool = False, endian: str = "<", ng: bool = False
) -> bytes:
    file = folder / "capture"
    with PcapNgWriter(str(file)) if ng else PcapWriter(str(file), linktype=link, nano=nano, endianness=endian) as out:
        for number, packet in enumerate(packets):
            packet.time = START + 0.125 * number
            out.write(packet)
    return file.read_bytes()


@pytest.mark.parametrize("form", [{}, {"nano": True}, {"endian": ">"}, {"endian": ">", "nano": True}, {"ng": True}])
def test_every_form_of_file(form: dict[str, Any], tmp_path: Path) -> None:
    sizes = [60, 700, 1400]
    content = capture([Ether() / inner("10.60.0.2", size) for size in sizes], tmp_path, **form)
    assert is_capture(content)
    trace = read_packets(content, "file", ALL)
    assert list(trace.sizes) == sizes
    np.testing.assert_allclose(trace.times_s, [0.0, 0.125, 0.25], atol=1e-6)
    assert trace.duration_s == pytest.approx(0.375)
    assert trace.mean_packet_bytes == 720
    np.testing.assert_allclose(
        trace.mbit_before(np.array([0.0, 0.1, 0.2, 0.375])), 8e-6 * np.cumsum([0, 60, 700, 1400])
    )


@pytest.mark.parametrize(
    ("link", "frame"),
    [
        (1, lambda packet: Ether() / packet),
        (1, lambda packet: Ether() / Dot1Q(vlan=5) / Dot1Q(vlan=7) / packet),
        (101, lambda packet: packet),
        (113, lambda packet: CookedLinux(proto=0x0800 if IP in packet else 0x86DD) / packet),
    ],
)
def test_links_and_both_versions_of_ip(link: int, frame: Any, tmp_path: Path) -> None:
    packets = [inner("10.60.0.2", 100), inner("2001:db8:1::2", 200)]
    trace = read_packets(capture([frame(packet) for packet in packets], tmp_path, link=link), "file", ALL)
    assert list(trace.sizes) == [100, 200]


def test_packets_in_tunnels_count_without_the_tunnel_and_nothing_else(tmp_path: Path) -> None:
    packets = [
        Ether() / tunnelled(inner("10.60.0.2", 300), 1),
        Ether() / ARP(),
        Ether() / IP(dst="10.1.0.2") / ICMP(),
        Ether() / tunnelled(inner("10.60.0.3", 400), 2, session=False),
        Ether()
        / IP(src="10.1.0.1", dst="10.1.0.2")
        / UDP(sport=2152, dport=2152)
        / GTP_U_Header(gtp_type=1, S=1, seq=3),
        Ether() / tunnelled(inner("2001:db8:1::2", 500), 3),
    ]
    content = capture(packets, tmp_path)
    assert list(read_packets(content, "file", ALL).sizes) == [300, 400, 500]
    by_teid = read_packets(content, "file", Chosen(teid=2))
    assert list(by_teid.sizes) == [400]
    assert by_teid.times_s[0] == pytest.approx(0.375)  # counted from the first packet of all
    assert list(read_packets(content, "file", Chosen(ip_network("10.60.0.3/32"))).sizes) == [400]
    assert list(read_packets(content, "file", Chosen(ip_network("2001:db8::/32"), 3)).sizes) == [500]
    with pytest.raises(ConfigError, match=r"no packet from 10.61.0.0/16 in tunnel 9; it has 3 packets in GTP-U"):
        read_packets(content, "file", Chosen(ip_network("10.61.0.0/16"), 9))


def test_cut_packets_keep_their_size_as_long_as_the_headers_are_there(tmp_path: Path) -> None:
    packets = [Ether() / tunnelled(inner("10.60.0.2", size), 1) for size in (1000, 1200)]

    def cut(at: int) -> bytes:
        frames = b"".join(
            struct.pack("<IIII", second, 0, min(at, len(bytes(p))), len(bytes(p))) + bytes(p)[:at]
            for second, p in enumerate(packets)
        )
        return struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, at, 1) + frames

    assert list(read_packets(cut(96), "file", ALL).sizes) == [1000, 1200]
    for at in (0, 13, 20, 40, 50, 60):
        with pytest.raises(ConfigError, match="packet 1: not enough of it was captured"):
            read_packets(cut(at), "file", ALL)


def test_damaged_files(tmp_path: Path) -> None:
    frames = [Ether() / inner("10.60.0.2", 100) for _ in range(3)]
    sound, other = capture(frames, tmp_path), capture(frames, tmp_path, ng=True)
    for content in (sound, other):
        read = []
        for length in range(4, len(content)):
            with contextlib.suppress(ConfigError):
                read.append(len(read_packets(content[:length], "file", ALL).sizes))
        assert read == [2], "it was cut between two packets"
    swapped = sound[:24] + sound[24 + 130 :] + sound[24 : 24 + 130]
    assert len(swapped) == len(sound)
    with pytest.raises(ConfigError, match="packet 3: its time is before that of the packet before it; `reordercap`"):
        read_packets(swapped, "file", ALL)
    with pytest.raises(ConfigError, match="link type 147"):
        read_packets(sound[:20] + struct.pack("<I", 147) + sound[24:], "file", ALL)
    with pytest.raises(ConfigError, match="1 IP packets at the same time"):
        read_packets(sound[: 24 + 16 + 114], "file", ALL)


def test_a_trace_of_packets_can_be_played_faster() -> None:
    trace = PacketTrace(np.array([0.0, 1.0]), np.array([100, 200]), 2.0)
    assert trace.faster(4.0).mean_mbps == pytest.approx(4 * trace.mean_mbps)
