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
from pathlib import Path
from typing import Any

from slicepilot.controller.system.net import namespaces
from slicepilot.controller.system.net.links import links
from slicepilot.controller.system.net.rtnetlink import RouteSocket
from slicepilot.controller.telemetry.points import NetPoint, SlicePoints
from slicepilot.testbed.backend.traffic import REAL_TIME
from slicepilot.testbed.lifecycle.layout import SINK_ADDRESS, SINK_PORT, netns_path
from slicepilot.testbed.lifecycle.processes import ProgramError, binary
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed

PACKET_BYTES = 1400
UPLINK_MBPS = 20_000.0  # no bottleneck
GENERATOR_CPU = 0
# A generator that could not run leaves out what is later than this: to catch up at once would not be the rate claimed.
MAX_LAG_MS = 2
DRAIN_S = 0.2


@contextlib.contextmanager
def bench_upf() -> Iterator[BenchUpf]:
    """The first slice of a testbed of its own, without per-packet work; the testbed goes down at the end.

    Raises:
        ConfigError, ProgramError, OSError: the testbed cannot be brought up, for instance because another is up.
    """
    testbed = Testbed.up(TestbedSpec(uplink_mbps=UPLINK_MBPS, burn_us=0.0, ues=2, name="bupf"), owned=True)
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
        """N3, the TUN device if wanted, and N6 behind the shared uplink; of all slices, as in a control loop, though
        only the first has load."""
        n6 = NetPoint(self._sink_netns, "n6")
        result = []
        for plan in self._testbed.layout.slices:
            here = netns_path(plan.netns)
            result.append(SlicePoints(plan.name, NetPoint(here, "n3"), NetPoint(here, "tun") if tun else None, n6))
        return result

    @contextlib.contextmanager
    def unread(self) -> Iterator[None]:
        """Within this context packets arrive at a socket that no process reads, so that no answers are sent."""
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
            f"to={plan.n3_upf},teid={plan.teid(0)},qfi={plan.qfi},ue={plan.ue(0)},dst={SINK_ADDRESS}:{SINK_PORT}"
        )
        options = (f"--flow={flow}", f"--duration={seconds:g}s", f"--cpu={GENERATOR_CPU}", f"--max-lag={MAX_LAG_MS}ms")
        program = self._testbed.start("load", self._testbed.layout.ran, [*REAL_TIME, binary("load"), *options])
        while program.process.alive:
            time.sleep(0.01)
        report = program.stop()
        if not report.get("flows"):
            raise ProgramError(f"load: no report; see {program.log}")
        time.sleep(DRAIN_S)
        sent: dict[str, Any] = report["flows"][0]
        return sent

    def received(self) -> int:
        """Packets that have come to the data network."""
        with closing(RouteSocket(self._sink_netns)) as route:
            return links(route)["n6"].received

    def cpu_s(self) -> float:
        """CPU time that the UPF's threads have got so far."""
        return self._testbed.upf(self._plan.name).cpu_s


def _pin(pid: int, cpus: set[int]) -> None:
    """Let all threads of a process run on these CPUs alone; anywhere if there are none."""
    if cpus:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), cpus)


def _bound_socket() -> socket.socket:
    sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind((SINK_ADDRESS, SINK_PORT))
    return sink
