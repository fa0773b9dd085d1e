"""A scenario's loads as packets: the plan for the load generator, and one run of it with its sink."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.data.files import replace_file
from slicepilot.data.reference import replayed_applications
from slicepilot.data.traces.trace import as_csv
from slicepilot.env.simulator.scenario import NEVER_S, Load, Scenario
from slicepilot.testbed.lifecycle.layout import SINK_ADDRESS, SINK_PORT, SlicePlan
from slicepilot.testbed.lifecycle.processes import Program, binary
from slicepilot.testbed.lifecycle.testbed import Testbed

LOAD_PRIORITY = 30  # SCHED_FIFO: the offered load must not depend on how busy the slices are
REAL_TIME = ("chrt", "--fifo", str(LOAD_PRIORITY))
CYCLE_STRETCH = (0.8, 1.2)  # of on/off cycles, as in the simulator's traffic
WEB_PORT = 8080
RECEIVERS = ("sink", "web")
ANSWERED_BYTES = 2 * 1400  # that a terminal acknowledges at once (RFC 1122, 4.2.3.2), in packets of a TUN device's MTU


def plan_of(scenario: Scenario, testbed: Testbed, seed: int) -> dict[str, Any]:
    """The load generator's plan (``load --help`` documents its fields), with all flows of all loads.

    Traces are written into the testbed's folder.

    Raises:
        ConfigError: TCP that a testbed cannot have, see `_check_tcp`; a trace that cannot be read.
    """
    rng = np.random.default_rng(seed)
    flows: list[dict[str, Any]] = []
    for plan in testbed.layout.slices:
        loads, absent = scenario.loads.get(plan.name, ()), scenario.absent.get(plan.name)
        if any(load.kind == "tcp" for load in loads):
            _check_tcp(plan.name, loads, absent)
            continue
        for number, load in enumerate(loads):
            own = _flows(plan, load, absent, testbed.spec.ues, rng, len(flows))
            trace = _trace(load, testbed.layout.state / f"trace-{plan.index}-{number}.csv")
            flows += [flow | trace for flow in own]
    apps = [asdict(row) for row in replayed_applications()]
    return {"flows": flows, "apps": apps, "duration_s": 0}


def _check_tcp(name: str, loads: tuple[Load, ...], absent: tuple[float, float] | None) -> None:
    """Raises ConfigError for TCP beside other loads of its slice, without answers, or for a part of the run only."""
    [load, *others] = loads
    if others or not load.answer_bytes:
        raise ConfigError(
            f"scenario: loads.{name}: kind 'tcp'; expected on a testbed: with answer_bytes and alone in its slice, or "
            f"video, cbr, poisson, onoff, apps, trace"
        )
    if absent or load.ramp or load.profile or load.start_s or load.end_s < NEVER_S:
        raise ConfigError(
            f"scenario: loads.{name}: kind 'tcp'; expected on a testbed: all the time, at a constant rate"
        )


def terminals_of(scenario: Scenario, testbed: Testbed) -> dict[str, list[str | Path]]:
    """Commands of the terminals of all slices with TCP, by program name (``ue --help`` documents their flags).

    The load's rate is that of acknowledgements, which follows from that of the answers.
    """
    result: dict[str, list[str | Path]] = {}
    for plan in testbed.layout.slices:
        for load in scenario.loads.get(plan.name, ()):
            if load.kind == "tcp":
                rate = round(1e6 * load.rate_mbps * ANSWERED_BYTES / load.packet_bytes)
                result[f"ue-{plan.name}"] = [
                    binary("ue"),
                    f"--from={plan.n3_ran}",
                    f"--to={plan.n3_upf}",
                    f"--teid={plan.teid(0)}",
                    f"--qfi={plan.qfi}",
                    f"--ue={plan.ue(0)}",
                    f"--tun=ue-{plan.index}",
                    f"--url=http://{SINK_ADDRESS}:{WEB_PORT}/{load.answer_bytes}?rate={rate}",
                    f"--users={load.flows}",
                    f"--pause={load.pause_s}s",
                    "--start-on-stdin",
                ]
    return result


def _flows(
    plan: SlicePlan, load: Load, absent: tuple[float, float] | None, ues: int, rng: np.random.Generator, first: int
) -> list[dict[str, Any]]:
    stretch, cycle_phase = rng.uniform(*CYCLE_STRETCH), rng.uniform()
    count = load.ramp.max_flows if load.ramp else load.flows
    result = []
    for number in range(count):
        late = max(0, number - load.flows + 1) * load.ramp.every_s if load.ramp else 0.0
        flow: dict[str, Any] = {
            "name": f"{plan.name}/{number}",
            "kind": load.kind,
            "packet_bytes": round(load.packet_bytes),
            "profile": load.profile,
            "seed": int(rng.integers(1 << 32)),
            "from": plan.n3_ran,
            "to": plan.n3_upf,
            "teid": plan.teid(number % ues),
            "qfi": plan.qfi,
            "ue": plan.ue(number % ues),
            "dst": f"{SINK_ADDRESS}:{SINK_PORT}",
            "source_port": 40_000 + first + number,
        }
        if load.kind not in ("apps", "trace"):
            flow["rate_mbps"] = load.rate_mbps
        if load.kind == "onoff":
            flow |= {"on_s": stretch * load.on_s, "off_s": stretch * load.off_s}
            flow["phase_s"] = cycle_phase * stretch * (load.on_s + load.off_s)
        for begin_s, end_s in _spans(load.start_s + late, load.end_s, absent):
            result.append(flow | {"start_s": begin_s} | ({"end_s": end_s} if end_s < NEVER_S else {}))
    return result


def _trace(load: Load, file: Path) -> dict[str, Any]:
    """Further fields of a flow of kind ``trace``; writes the trace's file."""
    if (replay := load.replay()) is None:
        return {}
    replace_file(file, as_csv(replay.trace), 0o600)
    return {
        "trace": str(file),
        "trace_start_s": replay.start_s,
        "trace_s": replay.trace.duration_s,
        "scale": replay.scale,
        "loop": replay.loop,
    }


def _spans(begin_s: float, end_s: float, absent: tuple[float, float] | None) -> list[tuple[float, float]]:
    """When a flow sends: its own time, less that in which its slice is absent."""
    if absent is None:
        return [(begin_s, end_s)]
    parts = [(begin_s, min(end_s, absent[0])), (max(begin_s, absent[1]), end_s)]
    return [(first, last) for first, last in parts if first < last]


class LoadRun:
    """One run of the load generator against a testbed, with the sink that receives it.

    Raises:
        ConfigError: another process runs loads on this testbed.
    """

    def __init__(self, testbed: Testbed, scenario: Scenario, seed: int) -> None:
        if other := testbed.program("sink"):
            raise ConfigError(
                f"testbed {testbed.spec.name!r} carries the loads of another run (process {other.pid}); "
                "wait until it ends, or use a testbed of another name"
            )
        self.started_ns = 0
        self._programs: dict[str, Program] = {}
        self._start_pipes: list[int] = []
        plan = plan_of(scenario, testbed, seed)
        path = testbed.layout.state / "plan.json"
        path.write_text(json.dumps(plan))
        try:
            sink: list[str | Path] = [binary("sink"), f"--listen={SINK_ADDRESS}:{SINK_PORT}", "--json"]
            self._programs["sink"] = testbed.start("sink", testbed.layout.data_network, sink)
            if plan["flows"]:
                load: list[str | Path] = [*REAL_TIME, binary("load"), f"--plan={path}", "--start-on-stdin", "--json"]
                self._start_on_stdin(testbed, "load", load)
            if terminals := terminals_of(scenario, testbed):
                web: list[str | Path] = [binary("ue"), f"--serve={SINK_ADDRESS}:{WEB_PORT}"]
                self._programs["web"] = testbed.start("web", testbed.layout.data_network, web)
            for name, arguments in terminals.items():
                self._start_on_stdin(testbed, name, arguments)
            for program in self._programs.values():
                program.wait_ready()
        except BaseException:
            self.stop()
            raise

    def _start_on_stdin(self, testbed: Testbed, name: str, arguments: list[str | Path]) -> None:
        """Have a program wait at N3 for the start."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        self._start_pipes.append(writer)
        try:
            self._programs[name] = testbed.start(name, testbed.layout.ran, arguments, stdin=reader)
        finally:
            os.close(reader)

    def start(self) -> None:
        """Let it send."""
        self.started_ns = time.monotonic_ns()
        for pipe in self._start_pipes:
            os.write(pipe, b"start\n")

    def stop(self) -> dict[str, dict[str, Any]]:
        """End it, what sends first; the last report of each program by name."""
        reports: dict[str, dict[str, Any]] = {}
        for name in (*(name for name in self._programs if name not in RECEIVERS), *RECEIVERS):
            if program := self._programs.pop(name, None):
                reports[name] = program.stop()
        while self._start_pipes:
            os.close(self._start_pipes.pop())
        return reports
