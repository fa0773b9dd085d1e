"""A program that makes a network namespace with an N3 device per slice and an N6 device, and sends some GTP-U.

``python -m slicepilot.testbed.bench.traffic SLICES`` prints ``ready`` and sends until its standard input ends. Every
packet enters at N3 in GTP-U (TS 29.281, clause 5.1) and leaves at N6 without, as if a UPF were between them.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import struct
import sys
import time

from pyroute2 import IPRoute

from slicepilot.controller.system.net.namespaces import CLONE_NEWNET

ETH_P_IP, IPPROTO_UDP, GTPU_PORT = 0x0800, 17, 2152
PAYLOAD_BYTES = 1372  # 1400 with the inner IP and UDP headers
INTERVAL_S = 0.005
LIFETIME_S = 600
ETHERNET = bytes(12) + struct.pack("!H", ETH_P_IP)


def make_devices(num_slices: int) -> None:
    """Pairs ``n3-I``/``gnb-I`` and ``n6``/``upf``, up."""
    with IPRoute() as route:
        for name, peer in [*((f"n3-{i}", f"gnb-{i}") for i in range(num_slices)), ("n6", "upf")]:
            route.link("add", ifname=name, kind="veth", peer=peer)
            for device in (name, peer):
                route.link("set", index=socket.if_nametoindex(device), state="up")


def ipv4(source: str, destination: str, payload: bytes) -> bytes:
    """An IPv4 packet with DF and identification 0 (RFC 6864); its checksum is 0, as nothing on the way checks it."""
    total, addresses = 20 + len(payload), socket.inet_aton(source) + socket.inet_aton(destination)
    return struct.pack("!BBHHHBBH", 0x45, 0, total, 0, 0x4000, 64, IPPROTO_UDP, 0) + addresses + payload


def udp(source: int, destination: int, payload: bytes) -> bytes:
    """A UDP datagram without checksum."""
    return struct.pack("!HHHH", source, destination, 8 + len(payload), 0) + payload


def gtpu(teid: int, inner: bytes) -> bytes:
    """A G-PDU without extension headers."""
    return struct.pack("!BBHI", 0x30, 255, len(inner), teid) + inner


def send_until_input_ends(num_slices: int) -> None:
    """One packet per slice and interval, from N3 to N6."""
    gnbs = [_packet_socket(f"gnb-{i}") for i in range(num_slices)]
    upf = _packet_socket("upf")
    sequence = 0
    while not select.select([sys.stdin], [], [], INTERVAL_S)[0]:
        sequence += 1
        for index, gnb in enumerate(gnbs):
            payload = struct.pack("!QQ", sequence, time.monotonic_ns()) + bytes(PAYLOAD_BYTES - 16)
            inner = ipv4(f"10.60.{index}.1", "10.103.0.2", udp(6000, 6000, payload))
            outer = ipv4("10.100.0.1", "10.100.0.2", udp(GTPU_PORT, GTPU_PORT, gtpu(1 + index, inner)))
            gnb.send(ETHERNET + outer)
            upf.send(ETHERNET + inner)


def _packet_socket(device: str) -> socket.socket:
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP))
    packets.bind((device, ETH_P_IP))
    return packets


def main() -> None:
    """See the module."""
    signal.alarm(LIFETIME_S)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; our standard input says when to end
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        sys.exit(f"network namespace: {os.strerror(ctypes.get_errno())}")
    make_devices(int(sys.argv[1]))
    print("ready", flush=True)
    send_until_input_ends(int(sys.argv[1]))


if __name__ == "__main__":
    main()
