"""Whether a slice's packets pass the points of measurement, and whether its process handles them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slicepilot.controller.telemetry.report.summary import summary
from slicepilot.controller.telemetry.source import KernelSource

# The least that a process can spend on a packet that it reads and writes: two system calls.
LEAST_WORK_US = 0.5
LEAST_PACKETS = 200
POLL_S = 0.2


@dataclass(frozen=True)
class Load:
    """One slice over the time that was watched.

    Attributes:
        packets: that came by N3; left: by the last point.
        match_ratio: share of those that left that were recognised; None for none.
        offered_mbps, carried_mbps: mean rates.
        delay_p50_us, delay_p99_us: None where nothing passed.
        cpu_use_mcpu: CPU time of its cgroup; None if it has no cgroup of its own.
        cpu_us_per_packet: the same by packet that left; None for too few packets.
        joined: of a service, whose packets are requests that came and answers that left: requests that came while an
            earlier request of their conversation had no answer; None for a UPF.
    """

    packets: int
    left: int
    match_ratio: float | None
    offered_mbps: float
    carried_mbps: float
    delay_p50_us: float | None
    delay_p99_us: float | None
    cpu_use_mcpu: float | None
    cpu_us_per_packet: float | None
    joined: int | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether so little CPU time goes into a packet that something else than the process handles it."""
        return self.cpu_us_per_packet is not None and self.cpu_us_per_packet < LEAST_WORK_US

    def __str__(self) -> str:
        if self.joined is not None:
            return self._of_service()
        if not self.packets:
            return "no packet has arrived at N3"
        if not self.left:
            return f"{self.packets} packets have come by N3, none has left: no session, or another way out"
        text = f"{self.offered_mbps:.1f} Mbit/s in, {self.carried_mbps:.1f} out"
        return text if self.match_ratio is None else f"{text}, {100 * self.match_ratio:.1f}% recognised"

    def _of_service(self) -> str:
        if not self.packets:
            return "no request has come to its ports"
        if not self.left:
            return f"{self.packets} packets of requests have come, no answer has left: another port, or another way out"
        return f"{self.offered_mbps:.1f} Mbit/s of requests in, {self.carried_mbps:.1f} of answers out"


def watch(source: KernelSource, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> list[Load]:
    """Measure for so many seconds; an entry for each slice. ``meanwhile`` is called a few times a second."""
    before, started = summary(source, None, 1.0), time.monotonic()
    joined = source.packets.slices["n3"]["joined"].copy()
    while (left := started + seconds - time.monotonic()) > 0:
        time.sleep(min(left, POLL_S))
        source.measure()
        meanwhile()
    took_s = time.monotonic() - started
    loads = [_load(*pair, took_s) for pair in zip(before["slices"], summary(source, None, 1.0)["slices"], strict=True)]
    joined = source.packets.slices["n3"]["joined"] - joined
    return [
        load if item.ports is None else dataclasses.replace(load, joined=int(more))
        for load, item, more in zip(loads, source.packets.points, joined, strict=False)
    ]


def _load(before: dict[str, Any], after: dict[str, Any], seconds: float) -> Load:
    last = "n6" if "n6" in after else "tun"

    def grown(point: str, field: str) -> int:
        return int(after[point][field] - before[point][field])

    packets, left = grown("n3", "packets"), grown(last, "packets")
    matched, missed = grown(last, "matched"), grown(last, "missed")
    use = (
        None
        if "cpu_mcpu" not in before or "cpu_mcpu" not in after
        else (after["cpu_mcpu"] - before["cpu_mcpu"]) / seconds
    )
    delay = after[last]["delay_us"] if matched else {"p50": None, "p99": None}
    return Load(
        packets=packets,
        left=left,
        match_ratio=matched / (matched + missed) if matched + missed else None,
        offered_mbps=8e-6 * grown("n3", "bytes") / seconds,
        carried_mbps=8e-6 * grown(last, "bytes") / seconds,
        delay_p50_us=delay["p50"],
        delay_p99_us=delay["p99"],
        cpu_use_mcpu=use,
        cpu_us_per_packet=None if use is None or left < LEAST_PACKETS else 1e3 * use * seconds / left,
    )
