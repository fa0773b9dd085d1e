"""A real UPF to measure the probe on: a testbed of its own, load for one slice, and a sink that nobody reads."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType

from ...testbed.layout import QFI, SINK_ADDRESS, SINK_PORT, netns_path
from ...testbed.processes import ProgramError, binary
from ...testbed.spec import TestbedSpec
from ...testbed.testbed import Testbed
from ..actuators.rtnetlink import RouteSocket
from . import namespaces, tc
from .points import NetPoint, SlicePoints

NAME = "bprobe"  # of the testbed
PACKET_BYTES = 1400
UPLINK_MBPS = 20_000.0  # no bottleneck
LOAD_PRIORITY = 30
DRAIN_S = 0.2


class BenchUpf:
    """The first slice of a testbed that is brought up for the purpose, and taken down at the end.

    Raises:
        ConfigError, ProgramError, OSError: it cannot be brought up, for instance because another one is.
    """

    def __init__(self) -> None:
        spec = TestbedSpec(uplink_mbps=UPLINK_MBPS, burn_us=0.0, ues=2, name=NAME)
        with ExitStack() as stack:
            self._testbed = Testbed.up(spec, owned=True)
            stack.callback(self._testbed.down)
            self._plan = self._testbed.layout.slices[0]
            self._sink_netns = netns_path(self._testbed.layout.data_network)
            # Nothing answers "port unreachable" to packets for a socket, and nothing runs for one that is not read.
            stack.enter_context(closing(namespaces.inside(self._sink_netns, _unread_socket)))
            self._stack = stack.pop_all()

    def __enter__(self) -> BenchUpf:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def points(self, *, tun: bool) -> list[SlicePoints]:
        """N3, the TUN device if wanted, and N6 behind the uplink that the slices share; of all slices, as a control
        loop has them, though the first one alone has load."""
        n6 = NetPoint(self._sink_netns, "n6")
        found = []
        for plan in self._testbed.layout.slices:
            here = netns_path(plan.netns)
            found.append(SlicePoints(plan.name, NetPoint(here, "n3"), NetPoint(here, "tun") if tun else None, n6))
        return found

    def send(self, packets_per_s: int, seconds: float) -> int:
        """Offer packets at a constant rate, and wait until they are through; returns how many were sent.

        Raises:
            ProgramError: the load generator failed.
        """
        plan = self._plan
        flow = (
            f"kind=cbr,rate={8e-6 * packets_per_s * PACKET_BYTES:g},bytes={PACKET_BYTES},from={plan.n3_ran},"
            f"to={plan.n3_upf},teid={plan.teid(0)},qfi={QFI},ue={plan.ue(0)},dst={SINK_ADDRESS}:{SINK_PORT}"
        )
        arguments: list[str | Path] = [
            binary("load"),
            f"--flow={flow}",
            f"--duration={seconds:g}s",
            "--json",
            f"--rt={LOAD_PRIORITY}",
            "--cpu=0",
        ]
        program = self._testbed.start("load", self._testbed.layout.ran, arguments)
        while program.process.alive:
            time.sleep(0.01)
        report = program.stop()
        if not report.get("flows"):
            raise ProgramError(f"load: no report; see {program.log}")
        time.sleep(DRAIN_S)
        return int(report["flows"][0]["packets"])

    def received(self) -> int:
        """Packets that have come to the data network."""
        with closing(RouteSocket(self._sink_netns)) as route:
            return tc.links(route)["n6"].received

    def cpu_s(self) -> float:
        """CPU time that the UPF's threads have got so far."""
        return self._testbed.upf(self._plan.name).cpu_s

    def close(self) -> None:
        """Take the testbed down; more than once does nothing."""
        self._stack.close()


def _unread_socket() -> socket.socket:
    sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind((SINK_ADDRESS, SINK_PORT))
    return sink
