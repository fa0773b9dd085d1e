"""Slices with UPFs of scripts under a live controller, of which one is hostile: what the others carry meanwhile."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from slicepilot.controller.contracts.modes import Level
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.record.ring import LATE
from slicepilot.controller.record.ring_reader import TickReader
from slicepilot.controller.service.control_client import ControlClient
from slicepilot.controller.system.realtime import FIFO_PRIORITY
from slicepilot.env.telemetry import SLICE_FIELDS
from slicepilot.testbed.bench.rig import Controller
from tests.node.foreign import Foreign
from tests.node.test_foreign import controller
from tests.node.traffic import receiving, sending

COUNT, HOSTILE = 4, 4  # UPFs are numbered from 1
MBPS, PACKET_BYTES = 20.0, 1400
"""What each slice is promised and offers: a quarter of a CPU, where a fair share of two CPUs is a half."""
BURN_NS = 100_000  # of CPU time for a packet, as the testbed's UPFs
UPLINK_MBPS = 120.0
PERIOD_MS = 5.0
SINK = "10.213.0.1:6000"
NOWHERE, NOWHERE_UPF = "10.214.0.1", "10.214.0.2"
OVER_OTHERS = 32  # times what processes weigh that have no part in it
CALM_S, CALM_TICKS = 45.0, 100  # a slice that trips three times in a row has its safe setting for 20 s
# An attack is sent whatever else there is to do, but a RAN is elsewhere: it takes no CPU from the controller's loop.
ATTACK_PRIORITY = FIFO_PRIORITY // 2

_CARRIED = SLICE_FIELDS.index("carried_mbps")


class NotCalmError(Exception):
    """Something is not as it is without an attack, though none goes on: there is nothing to compare with."""


@dataclass(frozen=True)
class Window:
    """What was seen over some seconds.

    Attributes:
        carried_mbps: of all slices but the hostile slice together, as the sink behind N6 counts it.
        p99_ms: 99th percentile of their packets' delay from the RAN to the sink, mean over slices.
        hostile_mbps: what the hostile slice carried of its normal load.
        late_pct: of the controller's ticks, those that were late or missed.
        others_safe_pct: of its ticks, those in which a slice other than the hostile slice had its safe setting.
        hostile_safe_pct: in which the hostile slice had.
        level: of the node, the worst.
    """

    carried_mbps: float
    p99_ms: float
    hostile_mbps: float
    late_pct: float
    others_safe_pct: float
    hostile_safe_pct: float
    level: Level


class Rig:
    """UPFs, their steady load, and a controller that acts on them; use it with ``with``.

    Args:
        folder: for logs and the controller's files.
        agent: of the controller.
    """

    def __init__(self, folder: Path, agent: str) -> None:
        self.folder, self.agent = folder, agent
        self.foreign: Foreign
        self.controller: Controller
        self._undo = ExitStack()

    def __enter__(self) -> Rig:
        with ExitStack() as undo:
            self.foreign = Foreign(self.folder, COUNT, prefix="ga", BURN_NS=str(BURN_NS))
            undo.callback(self.foreign.down)
            self.foreign.weigh(OVER_OTHERS)
            self._make_nowhere()
            log = undo.enter_context((self.folder / "programs.log").open("ab"))
            flows = [self.flow(number, number) for number in range(1, COUNT + 1)]
            undo.enter_context(sending(self.ran, {"flows": flows}, self.folder / "steady.json", log))
            node = self.folder / "node.yaml"
            node.write_text(yaml.safe_dump(self._document()))
            running = controller(node, self.foreign, self.folder, agent=self.agent, period_ms=PERIOD_MS)
            self.controller = undo.enter_context(running)
            self.calm()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @property
    def ran(self) -> str:
        """Network namespace of all gNBs."""
        return f"{self.foreign.prefix}-ran"

    @property
    def outside(self) -> str:
        """Network namespace behind N6."""
        return f"{self.foreign.prefix}-dn"

    def flow(self, number: int, flow_id: int, mbps: float = MBPS, real: bool = True, **more: Any) -> dict[str, Any]:
        """A flow through a UPF, for a plan of ``load``.

        Args:
            number: of the UPF.
            flow_id: the sink tells flows by it.
            mbps: of inner IP packets.
            real: else the same packets are made and sent, and no UPF is there to receive them.
            more: fields instead of those of a steady flow of the slice's own UE.
        """
        return {
            "id": flow_id,
            "name": f"slice{number}/{flow_id}",
            "kind": "cbr",
            "rate_mbps": mbps,
            "packet_bytes": PACKET_BYTES,
            "seed": flow_id,
            "from": f"10.210.{number}.1",
            "to": f"10.210.{number}.2" if real else NOWHERE_UPF,
            "teid": number,
            "qfi": 9,
            "ue": f"10.61.{number}.2",
            "dst": SINK,
            "source_port": 40_000 + flow_id,
        } | more

    @contextlib.contextmanager
    def also_sending(self, *flows: dict[str, Any]) -> Iterator[None]:
        """Beside the steady load."""
        plan = {"flows": list(flows)}
        with (
            (self.folder / "programs.log").open("ab") as log,
            sending(self.ran, plan, self.folder / "attack.json", log, ATTACK_PRIORITY),
        ):
            yield

    def window(self, seconds: float, during: contextlib.AbstractContextManager[object]) -> Window:
        """What the others carry while something goes on, from its beginning on."""
        options = ["--json", f"--report-interval={seconds:g}s"]
        with ExitStack() as undo:
            reader = undo.enter_context(closing(self.controller.reader()))
            sink = undo.enter_context(receiving(self.outside, SINK, *options, out=subprocess.PIPE))
            _line(sink, "ready")
            before = _missed(reader)
            reader.new()
            undo.enter_context(during)
            flows = {flow["flow"]: flow for flow in _line(sink, "interval")["flows"]}
            records = reader.new()
        others = [flows.get(number, {}) for number in range(1, COUNT + 1) if number != HOSTILE]
        carried = sum(flow.get("mbps", 0.0) for flow in others)
        delays = [flow["delay_p99_us"] for flow in others if flow]
        hostile = flows.get(HOSTILE, {}).get("mbps", 0.0)
        p99_ms = 1e-3 * float(np.mean(delays)) if delays else 1e3 * seconds
        if not len(records):
            ended = self.controller.process.poll()
            raise RuntimeError(f"no tick in {seconds:g} s; exit status {ended}: {self.controller.tail()}")
        safe = records["reasons"] & Reason.SAFE_SETTING.bit != 0
        late = int((records["flags"] & LATE != 0).sum()) + int(records["missed"][-1]) - before
        return Window(
            carried,
            p99_ms,
            hostile,
            late_pct=100.0 * late / len(records),
            others_safe_pct=100.0 * float(np.delete(safe, HOSTILE - 1, axis=1).any(axis=1).mean()),
            hostile_safe_pct=100.0 * float(safe[:, HOSTILE - 1].mean()),
            level=Level(int(records["level"].max())),
        )

    def calm(self) -> None:
        """Wait until all slices carry what they offer and the policy decides on all of them; raises `NotCalmError`."""
        deadline = time.monotonic() + CALM_S
        carried = np.full(COUNT, np.nan)
        while time.monotonic() < deadline:
            time.sleep(CALM_TICKS * 1e-3 * PERIOD_MS)
            ended = self.controller.process.poll()
            assert ended is None, f"the controller has ended with status {ended}: {self.controller.tail()}"
            with closing(self.controller.reader()) as reader:
                last = reader.last(CALM_TICKS)
            if bool((last["reasons"] & Reason.LATCHED.bit).any()):
                self._resume()
            safe = bool((last["reasons"] & Reason.SAFE_SETTING.bit).any())
            carried = last["slices"][:, _CARRIED].mean(axis=0)
            if not safe and int(last["level"].max()) == Level.NORMAL and carried.min() > 0.9 * MBPS:
                return
        said = {log.name: log.read_text().splitlines()[-2:] for log in sorted(self.folder.glob("*.log"))}
        rates = carried.round(1).tolist()
        raise NotCalmError(f"not calm in {CALM_S:g} s: slices carry {rates} Mbit/s; {said}; {self.controller.tail()}")

    def until_carried(self, least_mbps: float) -> None:
        """Wait until the hostile slice carries so much, as the controller sees it; raises AssertionError."""
        with closing(self.controller.reader()) as reader:
            deadline = time.monotonic() + CALM_S
            while reader.last(CALM_TICKS)["slices"][:, _CARRIED, HOSTILE - 1].mean() < least_mbps:
                assert time.monotonic() < deadline, f"the hostile slice never carried {least_mbps:g} Mbit/s"
                time.sleep(0.1)

    def _resume(self) -> None:
        socket = self.folder / "run" / self.foreign.prefix / "control.sock"
        with ControlClient(socket) as client:
            client.request({"command": "resume"})

    def _make_nowhere(self) -> None:
        """Where an attack is sent that is not to arrive: what it costs to make it is the RAN's matter, not the node's.

        A device whose other end is down has no carrier, and its qdisc then drops what it is handed (noop_qdisc in
        net/sched/sch_generic.c); the sender gets no error.
        """
        for words in (
            "link add nowhere type veth peer name nowhere-far",
            f"addr add {NOWHERE}/24 dev nowhere",
            "link set nowhere up",
            f"neigh replace {NOWHERE_UPF} lladdr 02:00:00:00:00:02 dev nowhere nud permanent",
        ):
            subprocess.run(["ip", "-n", self.ran, *words.split()], check=True)

    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = self.foreign.document() | {"uplink_mbps": UPLINK_MBPS, "quota_period_ms": 10.0}
        for item in document["slices"]:
            item |= {"weight": 1, "cpu_request_mcpu": 380, "sla": {"committed_mbps": MBPS, "delay_bound_ms": 20}}
        return document


def _missed(reader: TickReader) -> int:
    return int(reader.last(1)["missed"][-1])


def _line(sink: subprocess.Popen[bytes], event: str) -> dict[str, Any]:
    """The next line of a sink that says this."""
    assert sink.stdout is not None
    for text in sink.stdout:
        said: dict[str, Any] = json.loads(text)
        if said["event"] == event:
            return said
    raise RuntimeError(f"sink: ended before it said {event!r}")
