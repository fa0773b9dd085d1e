"""A program: what a UPF that makes packets of its own sends at N6, past every shaper on its way.

``python -m tests.attacks.hostile.own_packets DEVICE FROM TO MAC MBPS`` sends until it is killed. A packet socket with
PACKET_QDISC_BYPASS hands frames to the device itself, around its qdisc (packet(7)); who owns a UPF has the capability
for that in its network namespace.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

from slicepilot.testbed.bench.traffic import ETH_P_IP, ipv4, udp

SOL_PACKET, PACKET_QDISC_BYPASS = 263, 20  # bits/socket.h, linux/if_packet.h
PACKET_BYTES = 1400  # inner IP packet
REST_S = 0.002


def main(device: str, source: str, destination: str, mac: str, mbps: float) -> None:
    """Send."""
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    link.bind((device, ETH_P_IP))
    link.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
    header = bytes.fromhex(mac.replace(":", "")) + bytes.fromhex("020000000001") + struct.pack("!H", ETH_P_IP)
    frame = header + ipv4(source, destination, udp(40000, 9, bytes(PACKET_BYTES - 28)))
    per_s, number, began = 1e6 * mbps / (8 * PACKET_BYTES), 0, time.monotonic()
    while True:
        while number < (time.monotonic() - began) * per_s:
            link.send(frame)
            number += 1
        time.sleep(REST_S)


if __name__ == "__main__":
    _, device, source, destination, mac, mbps = sys.argv
    main(device, source, destination, mac, float(mbps))
