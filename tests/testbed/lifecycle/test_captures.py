"""Captures of both sides of a UPF have the delays that the probe has measured of the same packets.

A capture stamps a packet as it comes from the device, and the probe some microseconds later, in its hook: the UPF is
given work of a millisecond a packet, so that a hundredth is more than that.
"""

from __future__ import annotations

import csv
import json
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute
import pyarrow.parquet as pq
import pytest

from slicepilot.controller.system.net.namespaces import inside
from slicepilot.testbed.lifecycle.carrying import g_pdu, udp_packet
from slicepilot.testbed.lifecycle.layout import GTPU_PORT, SINK_ADDRESS, SINK_PORT, netns_path
from slicepilot.testbed.lifecycle.removal import take_down
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed, missing
from tests.command import slicepilot

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"this machine lacks {'; '.join(missing())}"),
]
compute: Any = pyarrow.compute
NAME, PACKETS = "spcp", 600
SO_TIMESTAMPNS = 35
ETH_P_ALL = 3


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    made = Testbed.up(TestbedSpec(name=NAME, burn_us=1000, ues=1), owned=True)
    yield made
    take_down(NAME)


class Capture:
    """Frames at a device with the kernel's own time stamps, as tcpdump has them, until it is written."""

    def __init__(self, netns: Path, device: str) -> None:
        self._socket: socket.socket = inside(netns, lambda: self._open(device))
        self._frames: list[tuple[int, bytes]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @staticmethod
    def _open(device: str) -> socket.socket:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        made.setsockopt(socket.SOL_SOCKET, 33, 1 << 25)  # SO_RCVBUFFORCE
        made.bind((device, 0))
        made.settimeout(0.2)
        return made

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                data, ancillary, _, _ = self._socket.recvmsg(2048, 128)
            except TimeoutError:
                continue
            seconds, ns = struct.unpack("qq", ancillary[0][2][:16])
            self._frames.append((seconds * 1_000_000_000 + ns, data))

    def write(self, path: Path) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()
        records = [struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)]
        for stamp, data in self._frames:
            records.append(struct.pack("<IIII", stamp // 10**9, stamp % 10**9, len(data), len(data)) + data)
        path.write_bytes(b"".join(records))


def test_delays_of_captures_are_the_probes(testbed: Testbed, tmp_path: Path) -> None:
    plan = testbed.layout.slices[0]
    upf, far = netns_path(plan.netns), netns_path(testbed.layout.data_network)
    program = "from slicepilot.cli import main; main()"
    command = [sys.executable, "-c", program, "probe", "--netns", plan.netns, "--n6-netns", testbed.layout.data_network]
    command += ["--duration", "6", "--csv", str(tmp_path / "probe.csv"), "--sample", "1", "--json"]
    captures = {"n3": Capture(upf, "n3"), "n6": Capture(far, "n6")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as probe:
        _wait_attached(tmp_path / "probe.csv")
        _send(testbed, plan)
        printed = json.loads(probe.communicate(timeout=60)[0])
    for name, capture in captures.items():
        capture.write(tmp_path / f"{name}.pcap")
    files = [tmp_path / "n3.pcap", tmp_path / "n6.pcap"]
    for arguments in (("map", *files, "--out", tmp_path / "map.yaml"),
                      ("import", "--map", tmp_path / "map.yaml", *files, "--out", tmp_path / "t")):  # fmt: skip
        done = slicepilot("dataset", *arguments)
        assert done.returncode == 0, done.stderr
    table = pq.read_table(tmp_path / "t" / "own.parquet")
    if "direction" in table.schema.names:  # the far end answers, that nobody listens
        table = table.filter(compute.equal(table.column("direction"), "uplink"))
    ours = table.column("delay_us").drop_null().to_numpy()
    with (tmp_path / "probe.csv").open() as file:
        theirs = np.asarray([float(row["delay_us"]) for row in csv.DictReader(file)])
    [item] = printed["slices"]
    assert item["n3"]["packets"] == PACKETS
    assert len(theirs) == len(ours) == item["n6"]["packets"]
    figures: dict[str, tuple[Any, Any]] = {"mean": (ours.mean(), theirs.mean())}
    figures |= {f"p{q}": (np.quantile(ours, q / 100), np.quantile(theirs, q / 100)) for q in (10, 50, 90, 99)}
    shown = {name: f"{own:.2f} {other:.2f}" for name, (own, other) in figures.items()}
    print(len(ours), shown)
    for name, (own, other) in figures.items():
        assert own == pytest.approx(other, rel=0.01), f"{name}: {shown}"


def _wait_attached(path: Path) -> None:
    """The file is there, and the probe a moment later."""
    for _ in range(300):
        if path.exists():
            break
        time.sleep(0.1)
    time.sleep(1.5)


def _send(testbed: Testbed, plan: Any) -> None:
    """Packets that all differ, one by one and in bursts, so that some wait."""
    generator = random.Random(1)
    gnb = inside(netns_path(testbed.layout.ran), lambda: _bound(plan.n3_ran))
    source, target = IPv4Address(plan.ue(0)), IPv4Address(SINK_ADDRESS)
    with gnb:
        for number in range(PACKETS):
            payload = number.to_bytes(8, "big") + bytes(generator.randrange(20, 1200))
            packet = udp_packet(source, target, 40000, SINK_PORT, payload)
            gnb.sendto(g_pdu(plan.teid(0), plan.qfi, packet), (plan.n3_upf, GTPU_PORT))
            if number % 5 == 4:
                time.sleep(0.008)


def _bound(address: str) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((address, GTPU_PORT))
    return made
