"""A trace on real packets: each of its bins has what the file says, by the kernel's times of arrival."""

import os
import socket
import struct
import subprocess
import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from slicepilot.testbed.backend.traffic import REAL_TIME
from tests.effort import THOROUGH

from .built import built
from .test_load_interop import free_port

LOAD = built("load")

pytestmark = [
    pytest.mark.realtime,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the load's priority"),
]
BIN_S, PACKET_BYTES = 0.005, 1400
BINS = 100_000 if THOROUGH else 2000
END = b"end"


def received(far_end: socket.socket, times: list[int], octets: list[int]) -> None:
    """Times of arrival in ns and octets of inner packets, until the last datagram."""
    while True:
        data, ancillary, _, _ = far_end.recvmsg(16, 64, socket.MSG_TRUNC)
        if data == END:
            return
        [(_, _, stamp)] = ancillary
        seconds, ns = struct.unpack("=qq", stamp)
        times.append(seconds * 1_000_000_000 + ns)
        octets.append(int.from_bytes(data[2:4], "big"))  # the length that GTP-U's header says


def in_bins(times: npt.NDArray[np.int64], octets: npt.NDArray[np.int64], start_ns: int) -> npt.NDArray[np.float64]:
    edges = start_ns + np.arange(BINS + 1) * round(1e9 * BIN_S)
    return np.histogram(times, edges, weights=octets)[0]


@pytest.mark.timeout(60 + 2 * BINS * BIN_S)
def test_each_bin_has_its_rate(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    mbps = np.round(rng.exponential(20.0, BINS) * (rng.random(BINS) > 0.2), 2)
    rows = (f"{BIN_S * i:.3f},{rate}" for i, rate in enumerate(mbps))
    (tmp_path / "rates.csv").write_text("\n".join(["time_s,mbps", *rows]) + "\n")
    times, octets = list[int](), list[int]()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far_end:
        far_end.bind(("127.0.0.1", 0))
        far_end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        far_end.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
        reader = threading.Thread(target=received, args=(far_end, times, octets))
        reader.start()
        to = f"127.0.0.1:{far_end.getsockname()[1]}"
        own = f"127.0.0.1:{free_port(socket.AF_INET, '127.0.0.1')}"
        flow = f"kind=trace,trace={tmp_path}/rates.csv,bytes={PACKET_BYTES},from={own},to={to},teid=1"
        flow += ",ue=10.60.0.2,dst=10.103.0.2:6000"
        command = [*REAL_TIME, LOAD, "--flow", flow, f"--duration={BINS * BIN_S}s", "--json"]
        try:
            subprocess.run(command, check=True, timeout=60 + 2 * BINS * BIN_S, capture_output=True)
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(END, far_end.getsockname())
            reader.join()
    came, sizes = np.asarray(times), np.asarray(octets)
    wanted = 1e6 * mbps * BIN_S / 8
    assert abs(sizes.sum() - wanted.sum()) <= PACKET_BYTES

    def right(start_ns: int, packets: int) -> float:
        off = np.abs(in_bins(came, sizes, start_ns) - wanted)
        return float((off <= np.maximum(0.01 * wanted, packets * PACKET_BYTES)).mean())

    # When the load began is known up to its first packet.
    first = int(came[0]) - round(1e9 * BIN_S * int(np.flatnonzero(mbps)[0]))
    start = max(range(first - 5_000_000, first + 1_000_000, 50_000), key=lambda start: right(start, 1))
    print(f"{BINS} bins: {right(start, 1):.2%} within 1% or a packet, {right(start, 2):.2%} within two")
    assert right(start, 1) > 0.9
