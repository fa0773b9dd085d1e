"""What one reference UPF can do on this machine: rates, CPU time, loss, reordering, PFCP round trips."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType

from ..controller.actuators.rtnetlink import RouteSocket
from ..controller.telemetry import tc
from ..env.simulator.scenario import Load, Scenario
from .layout import netns_path
from .sessions import SmfClient, session_name
from .spec import TestbedSpec
from .testbed import Testbed
from .traffic import LoadRun

PACKET_BYTES = 1400
UPLINK_MBPS = 20_000.0  # no bottleneck
DRAIN_S = 0.2
MODIFICATIONS, INTERVAL_US = 2000, 500


@dataclass(frozen=True)
class Run:
    """One constant rate through one UPF.

    Attributes:
        offered_mbps, carried_mbps: of inner packets.
        sent, lost, reordered: packets; lost are those that did not come out of N6, whoever reads them there.
        upf_cpus: CPU time of the UPF's threads over the run's length.
    """

    offered_mbps: float
    carried_mbps: float
    sent: int
    lost: int
    reordered: int
    upf_cpus: float

    @property
    def loss_pct(self) -> float:
        """Share of the packets that did not come through."""
        return 100.0 * self.lost / max(self.sent, 1)


class UpfBench:
    """The first slice of a testbed that is brought up for the purpose, without per-packet work, and goes down again.

    Args:
        n3_buffer_bytes: receive buffer of the UPF's N3 socket.

    Raises:
        ConfigError, ProgramError, OSError: it cannot be brought up.
    """

    def __init__(self, n3_buffer_bytes: int) -> None:
        spec = TestbedSpec(uplink_mbps=UPLINK_MBPS, burn_us=0.0, n3_buffer_bytes=n3_buffer_bytes, name="bupf")
        self._testbed = Testbed.up(spec, owned=True)
        self._plan = self._testbed.layout.slices[0]

    def __enter__(self) -> UpfBench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._testbed.down()

    def run(self, mbps: float, seconds: float) -> Run:
        """Offer a constant rate of packets of 1400 bytes.

        Raises:
            ProgramError: the load generator or the sink failed.
        """
        load = Load("cbr", rate_mbps=mbps, packet_bytes=PACKET_BYTES, end_s=seconds)
        scenario = Scenario(
            name="constant",
            description="one rate",
            slices=self._testbed.spec.slices,
            hardware="testbed",
            duration_s=seconds,
            control_period_s=0.01,
            loads={self._plan.name: (load,)},
        )
        played = LoadRun(self._testbed, scenario, seed=0)
        try:
            before, before_s, started = self._received(), self._cpu_s(), time.monotonic()
            played.start()
            time.sleep(seconds)
            used_s, passed_s = self._cpu_s() - before_s, time.monotonic() - started
            time.sleep(DRAIN_S)
            got = self._received() - before
        finally:
            reports = played.stop()
        sent = reports["load"]["flows"][0]
        read = next(iter(reports["sink"].get("flows", [])), {"reordered": 0})
        return Run(
            offered_mbps=sent["offered_mbps"],
            carried_mbps=8e-6 * PACKET_BYTES * got / seconds,
            sent=sent["packets"],
            lost=max(0, sent["packets"] - got),
            reordered=read["reordered"],
            upf_cpus=used_s / passed_s,
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

    def _received(self) -> int:
        """Packets that have come to the data network."""
        with closing(RouteSocket(netns_path(self._testbed.layout.data_network))) as route:
            return tc.links(route)["n6"].received

    def _cpu_s(self) -> float:
        """CPU time that the UPF's threads have got so far (proc_pid_schedstat(5))."""
        return self._testbed.upf(self._plan.name).cpu_s
