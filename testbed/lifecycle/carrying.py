"""Does a testbed carry packets? One through each slice and direction, and where they get lost if they do."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicepilot.configs.errors import FailureError
from slicepilot.controller.system.net.namespaces import inside

from .layout import Layout, SlicePlan, netns_path
from .processes import Program, ProgramError
from .sessions import SmfClient

PATIENCE_MS = 500.0
# Sent once more when one is lost. Counters of interfaces see ARP as well, a packet or two: they are told apart.
MORE = 20
STATS_TIMEOUT_S = 0.5
UPLINK, DOWNLINK = "ul", "dl"
DIRECTIONS = {UPLINK: "uplink", DOWNLINK: "downlink"}
Counts = dict[tuple[str, str, str], int]  # by namespace, interface, and rx or tx


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
    if direction == UPLINK:
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


def check(layout: Layout, smf: SmfClient, upfs: Mapping[str, Program], burn_us: float) -> None:
    """Send one packet per slice and direction, of the slice's first UE, and some more where it does not arrive.

    Their volume is read from the URRs, and so is in no later report. Where a load runs, the gNB's GTP-U port is taken,
    and this fails for that.

    Args:
        upfs: by slice.
        burn_us: that the UPFs spend on a packet.

    Raises:
        NotCarriedError: of a slice and direction, none has arrived.
    """
    patience_ms = PATIENCE_MS + 1e-3 * MORE * burn_us
    lost = [line for plan in layout.slices for line in _lost(layout, smf, plan, upfs[plan.name], patience_ms)]
    if lost:
        raise NotCarriedError("\n".join(lost))


def _lost(layout: Layout, smf: SmfClient, plan: SlicePlan, upf: Program, patience_ms: float) -> list[str]:
    """One line for each direction in which nothing arrives."""
    try:
        if all(trip["arrived"] for trip in smf.packets(plan, layout.data_network, 1, patience_ms)):
            return []
        before, dropped_before = _counters(layout, plan), _dropped(upf)
        again = smf.packets(plan, layout.data_network, MORE, patience_ms)
        after, dropped = _counters(layout, plan), _dropped(upf)
    except ProgramError as error:
        return [f"slice {plan.name}: no packets could be sent: {error}"]
    found: list[str] = []
    for trip in again:
        if trip["arrived"] == 0:
            direction = trip["direction"]
            way = _way(layout, plan, direction, before, after)
            said = _seen_by_upf(trip, _difference(dropped_before, dropped, direction))
            found.append(
                f"slice {plan.name}, {DIRECTIONS[direction]}: no packet from {trip['path']} arrives; "
                f"of {MORE}, {', '.join([*way, *said])}"
            )
    return found


def _way(layout: Layout, plan: SlicePlan, direction: str, before: Counts, after: Counts) -> list[str]:
    """How many passed each point, up to the first that most did not pass."""
    found: list[str] = []
    for point in points(layout, plan, direction):
        key = (point.namespace, point.interface, point.counter)
        if key not in after or key not in before:
            return [*found, f"none can have {point.passed}: {point.interface} in {point.namespace} is not there"]
        passed = min(after[key] - before[key], MORE)
        if passed <= MORE // 2:
            return [*found, f"{passed} {point.passed} ({point.interface} in {point.namespace})"]
        found.append(f"{passed} {point.passed}")
    return [*found, "and were not recognised there"]


def _seen_by_upf(trip: dict[str, Any], dropped: dict[str, int]) -> list[str]:
    """What the UPF says about them: on N4 by its URR, on N3 by an Error Indication, and by its own counters."""
    counted = trip["counted_bytes"]
    found = [
        "the UPF's URR does not say what it counted"
        if counted is None
        else f"the UPF's URR counted {counted // trip['packet_bytes']}"
    ]
    if trip.get("unknown_tunnel"):
        found.append("the UPF answers that it does not know the tunnel (Error Indication)")
    if dropped:
        found.append("the UPF dropped " + " and ".join(f"{count} ({why})" for why, count in dropped.items()))
    return found


def _counters(layout: Layout, plan: SlicePlan) -> Counts:
    """Packets so far of every interface that a slice's packets pass (proc_net_dev)."""
    found: Counts = {}
    for namespace in (plan.netns, layout.router, layout.data_network, layout.ran):
        with contextlib.suppress(OSError):
            table = inside(netns_path(namespace), Path("/proc/thread-self/net/dev").read_text)
            for line in table.splitlines()[2:]:
                interface, _, figures = line.partition(":")
                columns = figures.split()
                found[namespace, interface.strip(), "rx"] = int(columns[1])
                found[namespace, interface.strip(), "tx"] = int(columns[9])
    return found


def _dropped(upf: Program) -> dict[str, dict[str, int]]:
    """The UPF's own counters of what it has dropped, by direction and reason; empty where it does not say in time."""
    try:
        said = upf.output.stat().st_size
        if upf.process.alive:
            os.kill(upf.process.pid, signal.SIGUSR1)
        _wait(lambda: upf.output.stat().st_size > said)
        last = upf.lines()[-1]
    except (OSError, ValueError, IndexError, ProgramError):
        return {}
    return {short: last.get(name, {}).get("dropped", {}) for short, name in DIRECTIONS.items()}


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STATS_TIMEOUT_S
    while not done():
        if time.monotonic() > deadline:
            raise ProgramError(f"no figures within {STATS_TIMEOUT_S:g} s")
        time.sleep(0.002)


def _difference(before: dict[str, dict[str, int]], after: dict[str, dict[str, int]], direction: str) -> dict[str, int]:
    earlier, later = before.get(direction, {}), after.get(direction, {})
    return {why: count - earlier.get(why, 0) for why, count in later.items() if count > earlier.get(why, 0)}
