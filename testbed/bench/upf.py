"""One reference UPF to measure: brought up for the purpose, loaded at a constant rate, taken down at the end.

The generator and the sink have the machine's first CPU and the UPF the others, where there are others: what is measured
is the UPF, not its chance against a generator of real-time priority.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicepilot.controller.system.net import namespaces
from slicepilot.controller.system.net.links import links
from slicepilot.controller.system.net.rtnetlink import RouteSocket
from slicepilot.controller.telemetry.points import NetPoint, SlicePoints
from slicepilot.testbed.backend.traffic import LOAD_PRIORITY
from slicepilot.testbed.lifecycle.layout import QFI, SINK_ADDRESS, SINK_PORT, netns_path
from slicepilot.testbed.lifecycle.processes import Program, ProgramError, binary
from slicepilot.testbed.lifecycle.sessions import SmfClient, session_name
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed

PACKET_BYTES = 1400
UPLINK_MBPS = 20_000.0  # no bottleneck
GENERATOR_CPU = 0
# A generator that could not run leaves out what is later than this: to catch up at once would not be the rate claimed.
MAX_LAG_MS = 2
DRAIN_S = 0.2
MODIFICATIONS, INTERVAL_US = 2000, 500


@dataclass(frozen=True)
class ConstantRun:
    """One constant rate through the UPF.

    Attributes:
        offered_mbps, carried_mbps: of inner packets.
        sent, lost, reordered: packets; lost are those that did not leave by N6.
        skipped: packets that the generator left out, more than `MAX_LAG_MS` late.
        upf_cpus: CPU time of the UPF's threads over the run's length.
    """

    offered_mbps: float
    carried_mbps: float
    sent: int
    lost: int
    reordered: int
    skipped: int
    upf_cpus: float

    @property
    def loss_pct(self) -> float:
        """Share of the packets that did not come through."""
        return 100.0 * self.lost / max(self.sent, 1)


@contextlib.contextmanager
def bench_upf(n3_buffer_bytes: int | None = None) -> Iterator[BenchUpf]:
    """The first slice of a testbed of its own, without per-packet work; the testbed goes down at the end.

    Args:
        n3_buffer_bytes: receive buffer of the UPF's N3 socket; a testbed's without.

    Raises:
        ConfigError, ProgramError, OSError: it cannot be brought up, for instance because another one is.
    """
    spec = TestbedSpec(uplink_mbps=UPLINK_MBPS, burn_us=0.0, ues=2, name="bupf")
    testbed = Testbed.up(spec.override(n3_buffer_bytes=n3_buffer_bytes), owned=True)
    try:
        yield BenchUpf(testbed)
    finally:
        testbed.down()


class BenchUpf:
    """One UPF of a testbed, off the generator's CPU; see `bench_upf`."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed, self._plan = testbed, testbed.layout.slices[0]
        self._sink_netns = netns_path(testbed.layout.data_network)
        _pin(testbed.upf(self._plan.name).pid, os.sched_getaffinity(0) - {GENERATOR_CPU})

    def points(self, *, tun: bool) -> list[SlicePoints]:
        """N3, the TUN device if wanted, and N6 behind the uplink that the slices share; of all slices, as a control
        loop has them, though the first one alone has load."""
        n6 = NetPoint(self._sink_netns, "n6")
        result = []
        for plan in self._testbed.layout.slices:
            here = netns_path(plan.netns)
            result.append(SlicePoints(plan.name, NetPoint(here, "n3"), NetPoint(here, "tun") if tun else None, n6))
        return result

    @contextlib.contextmanager
    def unread(self) -> Iterator[None]:
        """Meanwhile packets arrive at a socket that nobody reads: nothing answers them, and nothing runs for them."""
        with closing(namespaces.inside(self._sink_netns, _bound_socket)):
            yield

    def send(self, packets_per_s: float, seconds: float) -> dict[str, Any]:
        """Offer packets at a constant rate, and wait until they are through; the generator's report of its flow.

        Raises:
            ProgramError: the load generator failed.
        """
        plan = self._plan
        flow = (
            f"kind=cbr,rate={8e-6 * packets_per_s * PACKET_BYTES:g},bytes={PACKET_BYTES},from={plan.n3_ran},"
            f"to={plan.n3_upf},teid={plan.teid(0)},qfi={QFI},ue={plan.ue(0)},dst={SINK_ADDRESS}:{SINK_PORT}"
        )
        options = ("--json", f"--rt={LOAD_PRIORITY}", f"--cpu={GENERATOR_CPU}", f"--max-lag={MAX_LAG_MS}ms")
        program = self._start("load", self._testbed.layout.ran, f"--flow={flow}", f"--duration={seconds:g}s", *options)
        while program.process.alive:
            time.sleep(0.01)
        report = program.stop()
        if not report.get("flows"):
            raise ProgramError(f"load: no report; see {program.log}")
        time.sleep(DRAIN_S)
        sent: dict[str, Any] = report["flows"][0]
        return sent

    def constant(self, mbps: float, seconds: float) -> ConstantRun:
        """Offer a constant rate, and have a sink look at what arrives.

        Raises:
            ProgramError: the load generator or the sink failed.
        """
        sink = self._start("sink", self._testbed.layout.data_network, f"--listen={SINK_ADDRESS}:{SINK_PORT}", "--json")
        try:
            sink.wait_ready()
            _pin(sink.process.pid, {GENERATOR_CPU})
            before, before_s = self.received(), self.cpu_s()
            sent = self.send(1e6 * mbps / (8 * PACKET_BYTES), seconds)
            through, used_s = self.received() - before, self.cpu_s() - before_s
        finally:
            read = sink.stop()
        flows = read.get("flows") or [{"reordered": 0}]
        return ConstantRun(
            offered_mbps=sent["offered_mbps"],
            carried_mbps=8e-6 * PACKET_BYTES * through / seconds,
            sent=sent["packets"],
            lost=max(0, sent["packets"] - through),
            reordered=flows[0]["reordered"],
            skipped=sent["skipped_packets"],
            upf_cpus=used_s / seconds,
        )

    def modifications(self) -> dict[str, float]:
        """Round trips of PFCP Session Modifications that change a rate, as the SMF sees them: p50_us, p99_us, max_us.

        On a session without load.
        """
        smf = SmfClient(self._testbed.layout.state)
        try:
            session = session_name(self._plan, 1)
            commands = [{"op": "modify", "session": session, "mbr_ul_mbps": rate} for rate in (900, 1000)]
            answer = smf.ask("repeat", n=MODIFICATIONS // 2, interval_us=2 * INTERVAL_US, command=commands)
        finally:
            smf.close()
        return {name: answer["repeat"]["rtt"]["modify"][name] for name in ("p50_us", "p99_us", "max_us")}

    def received(self) -> int:
        """Packets that have come to the data network."""
        with closing(RouteSocket(self._sink_netns)) as route:
            return links(route)["n6"].received

    def cpu_s(self) -> float:
        """CPU time that the UPF's threads have got so far."""
        return self._testbed.upf(self._plan.name).cpu_s

    def _start(self, name: str, namespace: str, *arguments: str) -> Program:
        command: list[str | Path] = [binary(name), *arguments]
        return self._testbed.start(name, namespace, command)


def _pin(pid: int, cpus: set[int]) -> None:
    """Let all threads of a process run on these CPUs alone; anywhere if there are none."""
    if cpus:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), cpus)


def _bound_socket() -> socket.socket:
    sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind((SINK_ADDRESS, SINK_PORT))
    return sink
