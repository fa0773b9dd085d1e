"""Packets of captures at N3 and N6 are matched, whatever the format of the file."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest

from slicepilot.data.faults import DatasetError, Faults
from slicepilot.data.own.crossings import crossings_of, labels_of
from slicepilot.data.own.pcap_files import read_packets
from slicepilot.data.own.propose import propose
from tests.data.own.test_kinds import table_of

START_NS = 1_764_000_000_000_000_000
Frames = list[tuple[int, bytes]]


def ipv4(payload: bytes, source: str, target: str, number: int, protocol: int = 17, ttl: int = 64) -> bytes:
    addresses = b"".join(bytes(map(int, text.split("."))) for text in (source, target))
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), number, 0, ttl, protocol, 0) + addresses + payload


def udp(payload: bytes, source: int = 4000, target: int = 6000, checksum: int = 0) -> bytes:
    return struct.pack("!HHHH", source, target, 8 + len(payload), checksum) + payload


def tunnel(inner: bytes, *, up: bool, teid: int = 7, upf: str = "10.1.0.2") -> bytes:
    extension = bytes([0, 0, 0, 0x85, 1, 0x10 if up else 0, 9, 0])
    gtpu = struct.pack("!BBHI", 0x34, 255, len(extension) + len(inner), teid) + extension + inner
    ends = ("10.1.0.1", upf) if up else (upf, "10.1.0.1")
    return ipv4(udp(gtpu, 2152, 2152), *ends, 0)


def traffic(nat: bool = False) -> tuple[Frames, Frames]:
    """What is seen at N3 and at N6: uplink packet n takes 10 + n us, downlink packet n 50 us; uplink 3 is lost."""
    n3: Frames = []
    n6: Frames = []
    for n in range(6):
        body = udp(n.to_bytes(4, "big") + bytes(100), checksum=n)
        at = START_NS + n * 1_000_000
        n3.append((at, tunnel(ipv4(body, "10.45.0.2", "10.9.0.1", n), up=True)))
        if n != 3:
            source = "192.0.2.1" if nat else "10.45.0.2"
            n6.append((at + (10 + n) * 1000, ipv4(udp(body[8:], checksum=99), source, "10.9.0.1", n, ttl=63)))
        back = ipv4(udp(b"d" + n.to_bytes(4, "big")), "10.9.0.1", "10.45.0.2", 100 + n)
        n6.append((at + 500_000, back))
        n3.append((at + 550_000, tunnel(back, up=False)))
    n6.append((START_NS, ipv4(udp(b"of others"), "10.8.0.1", "10.8.0.2", 1)))
    return n3, n6


def pcap(path: Path, frames: Frames, snap: int = 65535) -> Path:
    """Raw IP packets with nanoseconds; tests/data/traces/test_captures.py has the other forms of files and frames."""
    parts = [struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, snap, 101)]
    for at, packet in frames:
        data = packet[:snap]
        parts.append(struct.pack("<IIII", at // 10**9, at % 10**9, len(data), len(packet)) + data)
    path.write_bytes(b"".join(parts))
    return path


@pytest.mark.parametrize("kind", ["whole", "cut", "NAT", "in a file"])
def test_delays_of_both_directions(tmp_path: Path, kind: str) -> None:
    n3, n6 = traffic(nat=kind == "NAT")
    if kind == "in a file":
        paths = [pcap(tmp_path / "any.pcap", sorted(n3 + n6, key=lambda frame: frame[0]))]
    else:
        snap = 140 if kind == "cut" else 65535
        paths = [pcap(tmp_path / f"{name}.pcap", own, snap) for name, own in (("n3", n3), ("n6", n6))]
    faults = Faults()
    packets = read_packets(paths, faults)
    crossings = crossings_of(paths, packets, faults)
    delays = [None if math.isnan(delay) else round(delay, 3) for delay in crossings.delay_us[crossings.up].tolist()]
    assert crossings.delay_us[~crossings.up].tolist() == [50.0] * 6
    assert delays == [10, 11, 12, None, 14, 15]
    assert labels_of(packets, crossings)["upf_address"].names == ("10.1.0.2",)
    assert labels_of(packets, crossings)["ue_network"].names == ("10.45.0.0/24",)
    assert any("of no UE" in note for note in faults.notes)


def test_packets_that_are_alike_keep_their_order(tmp_path: Path) -> None:
    inner = ipv4(udp(bytes(20)), "10.45.0.2", "10.9.0.1", 0)
    n3 = [(START_NS + n * 10_000, tunnel(inner, up=True)) for n in range(5)]
    n6 = [(at + 25_000, inner) for at, _ in n3]  # more than the time between two of them
    paths = [pcap(tmp_path / "n3.pcap", n3), pcap(tmp_path / "n6.pcap", n6)]
    crossings = crossings_of(paths, read_packets(paths, Faults()), Faults())
    assert crossings.delay_us.tolist() == [25.0] * 5


def test_slices_are_proposed_by_upf(tmp_path: Path) -> None:
    n3: Frames = []
    n6: Frames = []
    for n in range(20):
        inner = ipv4(udp(n.to_bytes(4, "big")), "10.45.0.2", "10.9.0.1", n)
        n3.append((START_NS + n * 1000, tunnel(inner, up=True, upf=f"10.1.{n % 2}.2")))
        n6.append((START_NS + n * 1000 + 7000, inner))
    text = propose([pcap(tmp_path / "n3.pcap", n3), pcap(tmp_path / "n6.pcap", n6)]).text
    assert "match: 'n*.pcap'" in text
    assert "slice: upf_address" in text


def test_periods_of_captures_are_of_the_uplink(tmp_path: Path) -> None:
    paths = [pcap(tmp_path / f"{name}.pcap", own) for name, own in zip(("n3", "n6"), traffic(), strict=True)]
    every = table_of(tmp_path, *paths)
    assert every.column("direction").to_pylist().count("downlink") == 6
    [row] = table_of(tmp_path, *paths, edit=("files:", "period_s: 60\nfiles:")).to_pylist()
    assert row["delay_p50_us"] == pytest.approx(12)
    assert "direction" not in row


def test_captures_of_other_packets_are_refused(tmp_path: Path) -> None:
    n3, n6 = traffic()
    plain = pcap(tmp_path / "n6.pcap", n6)
    with pytest.raises(DatasetError, match="no GTP-U packets"):
        crossings_of([plain], read_packets([plain], Faults()), Faults())
    other = pcap(tmp_path / "other.pcap", n6[-1:])
    paths = [pcap(tmp_path / "n3.pcap", n3), other]
    with pytest.raises(DatasetError, match="none of its packets is one of N3"):
        crossings_of(paths, read_packets(paths, Faults()), Faults())
