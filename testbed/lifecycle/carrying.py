"""Does a testbed carry packets? One packet per slice and direction; where it gets lost if it does not arrive."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from slicepilot.configs.errors import FailureError
from slicepilot.controller.system.net.namespaces import inside

from .layout import GTPU_PORT, QFI, SINK_ADDRESS, Layout, SlicePlan, netns_path
from .processes import Program, ProgramError

PATIENCE_S = 0.5
# Sent once more when one is lost. Interface counters see ARP as well, a packet or two: this many stand out.
MORE = 20
STATS_TIMEOUT_S = 0.5
UE_PORT = 5000
DIRECTIONS = ("uplink", "downlink")
Counts = dict[tuple[str, str, str], int]  # by namespace, interface, and rx or tx
Dropped = dict[str, dict[str, int]]  # by direction and reason


class NotCarriedError(FailureError):
    """A testbed loses packets: one line for each slice and direction."""


@dataclass(frozen=True)
class Point:
    """A counter that packets pass: of what an interface received (rx) or sent (tx), and what having passed means."""

    namespace: str
    interface: str
    counter: str
    passed: str


def points(layout: Layout, plan: SlicePlan, direction: str) -> tuple[Point, ...]:
    """What the packets of a slice and direction pass, in order."""
    upf, router, outside = plan.netns, layout.router, layout.data_network
    if direction == "uplink":
        return (
            Point(upf, "n3", "rx", "reached N3"),
            Point(upf, "tun", "rx", "left the UPF for its TUN device"),
            Point(upf, "n6", "tx", "left on N6"),
            Point(router, "uplink", "tx", "entered the shared uplink"),
            Point(outside, "n6", "rx", "arrived behind it"),
        )
    return (
        Point(router, "uplink", "rx", "came over the shared uplink"),
        Point(upf, "n6", "rx", "reached N6"),
        Point(upf, "tun", "tx", "reached the UPF's TUN device"),
        Point(upf, "n3", "tx", "left the UPF on N3"),
        Point(layout.ran, f"n3-{plan.index}", "rx", "arrived at the radio side"),
    )


def check(layout: Layout, upfs: Mapping[str, Program], burn_us: float) -> None:
    """Send one packet per slice and direction, of the slice's first UE, and `MORE` where it does not arrive.

    Where a load runs, the gNB's GTP-U port is taken, and this fails for that.

    Args:
        layout: of the testbed.
        upfs: by slice.
        burn_us: that the UPFs spend on a packet.

    Raises:
        NotCarriedError: no packet of a slice and direction has arrived.
    """
    patience_s = PATIENCE_S + 1e-6 * MORE * burn_us
    lost = [line for plan in layout.slices for line in _lost(layout, plan, upfs[plan.name], patience_s)]
    if lost:
        raise NotCarriedError("\n".join(lost))


def _lost(layout: Layout, plan: SlicePlan, upf: Program, patience_s: float) -> list[str]:
    """One line for each direction in which nothing arrives."""
    try:
        if all(_send(layout, plan, 1, patience_s).values()):
            return []
        before, dropped_before = _counters(layout, plan), _dropped(upf)
        arrived = _send(layout, plan, MORE, patience_s)
        after, dropped = _counters(layout, plan), _dropped(upf)
    except OSError as error:
        return [f"slice {plan.name}: no packets could be sent: {error}"]
    ue, teid = plan.ue(0), plan.teid(0)
    paths = {
        "uplink": f"UE {ue} through TEID {teid:#x} at {plan.n3_upf} to {SINK_ADDRESS}",
        "downlink": f"{SINK_ADDRESS} to UE {ue} through TEID {teid:#x} at {plan.n3_ran}",
    }
    lines = []
    for direction in DIRECTIONS:
        if not arrived[direction]:
            seen = [*_passed(layout, plan, direction, before, after), *_reasons(dropped_before, dropped, direction)]
            lines.append(
                f"slice {plan.name}, {direction}: no packet from {paths[direction]} arrives; "
                f"of {MORE}, {', '.join(seen)}"
            )
    return lines


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
            gnb.sendto(g_pdu(plan.teid(0), QFI, packet), (plan.n3_upf, GTPU_PORT))
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


def _passed(layout: Layout, plan: SlicePlan, direction: str, before: Counts, after: Counts) -> list[str]:
    """How many passed each point, up to the first that most did not pass."""
    lines: list[str] = []
    for point in points(layout, plan, direction):
        key = (point.namespace, point.interface, point.counter)
        if key not in after or key not in before:
            return [*lines, f"none can have {point.passed}: {point.interface} in {point.namespace} does not exist"]
        passed = min(after[key] - before[key], MORE)
        if passed <= MORE // 2:
            return [*lines, f"{passed} {point.passed} ({point.interface} in {point.namespace})"]
        lines.append(f"{passed} {point.passed}")
    return [*lines, "and were not recognised there"]


def _counters(layout: Layout, plan: SlicePlan) -> Counts:
    """Packets so far of every interface that a slice's packets pass (proc_net_dev)."""
    counts: Counts = {}
    for namespace in (plan.netns, layout.router, layout.data_network, layout.ran):
        with contextlib.suppress(OSError):
            table = inside(netns_path(namespace), Path("/proc/thread-self/net/dev").read_text)
            for line in table.splitlines()[2:]:
                interface, _, figures = line.partition(":")
                columns = figures.split()
                counts[namespace, interface.strip(), "rx"] = int(columns[1])
                counts[namespace, interface.strip(), "tx"] = int(columns[9])
    return counts


def _dropped(upf: Program) -> Dropped:
    """The UPF's own counters of what it has dropped; empty where it does not report in time."""
    try:
        size = upf.output.stat().st_size
        if upf.process.alive:
            os.kill(upf.process.pid, signal.SIGUSR1)
        _wait(lambda: upf.output.stat().st_size > size)
        last = upf.lines()[-1]
    except (OSError, ValueError, IndexError, ProgramError):
        return {}
    return {direction: last.get(direction, {}).get("dropped", {}) for direction in DIRECTIONS}


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STATS_TIMEOUT_S
    while not done():
        if time.monotonic() > deadline:
            raise ProgramError(f"no figures within {STATS_TIMEOUT_S:g} s")
        time.sleep(0.002)


def _reasons(before: Dropped, after: Dropped, direction: str) -> list[str]:
    """Why the UPF has dropped packets meanwhile, as it reports."""
    earlier = before.get(direction, {})
    new = {why: count - earlier.get(why, 0) for why, count in after.get(direction, {}).items()}
    text = " and ".join(f"{count} ({why})" for why, count in new.items() if count)
    return [f"the UPF dropped {text}"] if text else []
