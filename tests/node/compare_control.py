"""The same loads on the testbed's UPFs and on UPFs that scripts have started: is control worth the same?

    python -m tests.node.compare_control [--turns 7] [--seconds 8] [--agents static-weights-64,queue-greedy]

As root. Both rigs stand side by side and are loaded in turns, one idle while the other is at work: five slices offer
what the scenario testbed-contention says, more than two CPUs can do. Each figure is a mean over turns, with a 95%
interval of what the node has more than the testbed in the same turn. Exit code 1 where an interval of the rates carried
excludes no difference by more than a tenth of what is offered.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from slicepilot.data.intervals import paired_differences
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.testbed.backend.traffic import plan_of
from slicepilot.testbed.lifecycle.layout import SINK_ADDRESS, SINK_PORT
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed

from .foreign import Foreign
from .test_foreign import SLICEPILOT, document_of
from .traffic import receiving, sending

SCENARIO = "testbed-contention"
NOISE = 0.1  # of what is offered
FIGURES = ("priority carried, Mbit/s", "priority p99, ms", "priority late ticks, %", "others carried, Mbit/s")
WARM_UP_S = 1.0
START_S = 120.0  # a controller takes long to start beside UPFs that take all CPU time


class Side:
    """One of the two rigs: how it is loaded and what controls it."""

    def __init__(self, name: str, plan: dict[str, Any], ran: str, outside: str, sink: str, run: list[str]) -> None:
        self.name, self.plan, self.run = name, plan, run
        self._ran, self._outside, self._sink = ran, outside, sink

    def turn(self, agent: str, seconds: float, folder: Path) -> list[float]:
        """One run of an agent; `FIGURES`."""
        mode = "shadow" if agent == "as-found" else "live"
        options = ["--agent", agent, "--mode", mode, "--period-ms", "5", "--seconds", f"{seconds:g}", "--log", "off"]
        with self._loaded(seconds + START_S, folder):
            command = [*SLICEPILOT, "run", *self.run, *options, "--json"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + START_S)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        slices = json.loads(done.stdout)["slices"]
        if not all(item["offered_mbps"] > 0 for item in slices):
            raise RuntimeError(f"{self.name}, {agent}: a slice was sent nothing: {slices}")
        first, others = slices[0], slices[1:]
        carried = sum(item["carried_mbps"] for item in others)
        return [first["carried_mbps"], 1e-3 * first["delay_p99_us"], first["late_ticks_pct"], carried]

    @contextlib.contextmanager
    def _loaded(self, seconds: float, folder: Path) -> Iterator[None]:
        plan = self.plan | {"duration_s": seconds}
        with (
            (folder / f"{self.name}.log").open("ab") as log,
            receiving(self._outside, self._sink, out=log),
            sending(self._ran, plan, folder / f"{self.name}-plan.json", log),
        ):
            time.sleep(WARM_UP_S)
            yield


@contextlib.contextmanager
def sides(folder: Path, scenario: Scenario) -> Iterator[list[Side]]:
    """Both, up."""
    with contextlib.ExitStack() as undo:
        spec = TestbedSpec(name="spcmp", ues=1)
        testbed = Testbed.up(spec)
        undo.callback(testbed.down)
        layout = testbed.layout
        plan = plan_of(scenario, testbed, 0)
        run = ["--name", spec.name]
        made = [Side("testbed", plan, layout.ran, layout.data_network, f"{SINK_ADDRESS}:{SINK_PORT}", run)]

        foreign = Foreign(folder, prefix="fc", BURN_NS=f"{1e3 * spec.burn_us:.0f}")
        undo.callback(foreign.down)
        foreign.weigh()
        node = folder / "node.yaml"
        node.write_text(json.dumps(_document(foreign, testbed)))
        outside, sink = f"{foreign.prefix}-dn", f"10.213.0.1:{SINK_PORT}"
        flows = [_moved(flow, testbed, sink) for flow in plan["flows"]]
        run = ["--node", str(node)]
        made.append(Side("node", plan | {"flows": flows}, f"{foreign.prefix}-ran", outside, sink, run))
        yield made


def _document(foreign: Foreign, testbed: Testbed) -> dict[str, Any]:
    """The node, with the testbed's promises."""
    document: dict[str, Any] = document_of(foreign) | {"quota_period_ms": testbed.spec.quota_period_ms}
    promised = {item.name: item for item in testbed.slices.slices}
    for item in document["slices"]:
        like = promised[item["name"]]
        item |= {"weight": like.weight, "cpu_request_mcpu": like.cpu_request_mcpu, "sla": dataclasses.asdict(like.sla)}
        item["bounds"] = dataclasses.asdict(like.bounds)
    return document


def _moved(flow: dict[str, Any], testbed: Testbed, sink: str) -> dict[str, Any]:
    """A flow of the testbed, through the node's UPF of the same slice."""
    number = 1 + list(testbed.slices.names).index(flow["name"].partition("/")[0])
    ends = {"from": f"10.210.{number}.1", "to": f"10.210.{number}.2", "teid": number}
    return flow | ends | {"ue": f"10.61.{number}.2", "dst": sink}


def main(arguments: list[str]) -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--agents", default="as-found,static-weights-64,queue-greedy")
    options = parser.parse_args(arguments)
    agents = options.agents.split(",")
    scenario = Scenario.from_yaml(SCENARIO)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with sides(folder, scenario) as both:
            result = play(both, agents, options.turns, options.seconds, folder)
    return int(not report(agents, result, scenario))


class Rig(Protocol):
    """What can be loaded and controlled."""

    def turn(self, agent: str, seconds: float, folder: Path, /) -> list[float]:
        """One run of an agent; `FIGURES`."""
        ...


def play(both: Sequence[Rig], agents: list[str], turns: int, seconds: float, folder: Path) -> np.ndarray[Any, Any]:
    """Both in turns, each first every second time; by agent, rig, figure and turn."""
    result = np.zeros((len(agents), 2, len(FIGURES), turns))
    for turn in range(turns):
        for index, agent in enumerate(agents):
            for number in (0, 1) if turn % 2 else (1, 0):
                result[index, number, :, turn] = both[number].turn(agent, seconds, folder)
        print(f"turn {turn + 1} of {turns}", file=sys.stderr)
    return result


def report(agents: list[str], result: np.ndarray[Any, Any], scenario: Scenario, second: str = "node") -> bool:
    """The table; whether no rate that is carried differs by more than noise."""
    offered_mbps = sum(load.rate_mbps for loads in scenario.loads.values() for load in loads) / len(scenario.loads)
    same = True
    print(f"{'agent':18} {'figure':26} {'testbed':>8} {second:>8}   {second} less testbed")
    for index, agent in enumerate(agents):
        for number, figure in enumerate(FIGURES):
            testbed, node = result[index, :, number]
            (more,) = paired_differences(node, [testbed])
            line = f"{more.value:+.2f} ({more.low:+.2f} to {more.high:+.2f})"
            print(f"{agent:18} {figure:26} {testbed.mean():8.2f} {node.mean():8.2f}   {line}")
            if "carried" in figure:
                slices = 1 if figure.startswith("priority") else 4
                same &= min(abs(more.low), abs(more.high)) < NOISE * slices * offered_mbps or more.low < 0 < more.high
    return same


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
