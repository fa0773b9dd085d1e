"""Checks that a testbed carries packets, with one packet per slice and direction."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from ipaddress import IPv4Address

from slicepilot.configs.errors import FailureError
from slicepilot.controller.system.net.namespaces import inside

from .layout import GTPU_PORT, SINK_ADDRESS, Layout, SlicePlan, netns_path

PATIENCE_S = 0.5
MORE = 20  # packets that are sent when the first is lost
UE_PORT = 5000


class NotCarriedError(FailureError):
    """A testbed loses packets: one line for each slice and direction."""


def check(layout: Layout, burn_us: float) -> None:
    """Send a packet per slice and direction, of the slice's first UE, and `MORE` where it does not arrive.

    Where a load runs, the gNB's GTP-U port is taken, and this fails for that.

    Args:
        layout: of the testbed.
        burn_us: that the UPFs spend on a packet.

    Raises:
        NotCarriedError: no packet of a slice and direction has arrived.
    """
    patience_s = PATIENCE_S + 1e-6 * MORE * burn_us
    lost = [line for plan in layout.slices for line in _lost(layout, plan, patience_s)]
    if lost:
        raise NotCarriedError("\n".join(lost))


def _lost(layout: Layout, plan: SlicePlan, patience_s: float) -> list[str]:
    """One line for each direction in which nothing arrives."""
    try:
        if all(_send(layout, plan, 1, patience_s).values()):
            return []
        arrived = _send(layout, plan, MORE, patience_s)
    except OSError as error:
        return [f"slice {plan.name}: no packets could be sent: {error}"]
    ue, teid = plan.ue(0), plan.teid(0)
    paths = {
        "uplink": f"UE {ue} through TEID {teid:#x} at {plan.n3_upf} to {SINK_ADDRESS}",
        "downlink": f"{SINK_ADDRESS} to UE {ue} through TEID {teid:#x} at {plan.n3_ran}",
    }
    return [
        f"slice {plan.name}, {direction}: no packet from {path} arrives (counters: ip -n {plan.netns} -s link)"
        for direction, path in paths.items()
        if not arrived[direction]
    ]


def _send(layout: Layout, plan: SlicePlan, count: int, patience_s: float) -> dict[str, int]:
    """Send packets in both directions; how many arrive in each. Raises OSError."""
    mark = os.urandom(8)
    with (
        inside(netns_path(layout.ran), lambda: _bound(plan.n3_ran, GTPU_PORT)) as gnb,
        inside(netns_path(layout.data_network), lambda: _bound(SINK_ADDRESS, 0)) as server,
    ):
        payload = mark.ljust(72, b"\0")
        port = server.getsockname()[1]
        packet = udp_packet(IPv4Address(plan.ue(0)), IPv4Address(SINK_ADDRESS), UE_PORT, port, payload)
        for _ in range(count):
            gnb.sendto(g_pdu(plan.teid(0), plan.qfi, packet), (plan.n3_upf, GTPU_PORT))
        uplink = _received(server, mark, count, patience_s)
        for _ in range(count):
            server.sendto(payload, (plan.ue(0), UE_PORT))
        return {"uplink": uplink, "downlink": _received(gnb, mark, count, patience_s)}


def _bound(address: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        made.bind((address, port))
    except BaseException:
        made.close()
        raise
    return made


def _received(at: socket.socket, mark: bytes, count: int, patience_s: float) -> int:
    """How many packets with a mark arrive in time."""
    arrived, deadline = 0, time.monotonic() + patience_s
    while arrived < count and (left := deadline - time.monotonic()) > 0:
        if select.select([at], [], [], left)[0]:
            with contextlib.suppress(ConnectionError):  # what an earlier packet has met with (ICMP)
                arrived += mark in at.recv(2048)
    return arrived


def udp_packet(
    source: IPv4Address, destination: IPv4Address, source_port: int, destination_port: int, payload: bytes
) -> bytes:
    """An IPv4 packet (RFC 791) with a UDP datagram without a checksum (RFC 768)."""
    head = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(payload), 0, 0x4000, 64, socket.IPPROTO_UDP, 0)
    head += source.packed + destination.packed
    total = sum(struct.unpack("!10H", head))
    checksum = ~(total % 0xFFFF) & 0xFFFF  # the sum in ones' complement (RFC 1071)
    datagram = struct.pack("!4H", source_port, destination_port, 8 + len(payload), 0) + payload
    return head[:10] + struct.pack("!H", checksum) + head[12:] + datagram


def g_pdu(teid: int, qfi: int, packet: bytes) -> bytes:
    """An uplink G-PDU (TS 29.281, clause 5.1) with a PDU Session Container (TS 38.415, clause 5.5.2)."""
    extension = bytes([0, 0, 0, 0x85, 1, 0x10, qfi, 0])
    return struct.pack("!BBHI", 0x34, 255, len(extension) + len(packet), teid) + extension + packet
