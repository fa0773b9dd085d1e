"""The same loads on the testbed's UPFs and on UPF pods of a real cluster: is control worth the same, at what cost?

    python -m tests.cluster.compare_control [--turns 6] [--seconds 8] [--agents as-found,static-weights-64]

As root; `make k8s-test` has built the cluster's programs. Both rigs stand side by side and are loaded in turns, one
idle while the other is at work: five slices offer what the scenario testbed-contention says, more than two CPUs can do.
On the testbed `slicepilot run` is started for each turn, on the cluster a node's agent runs the loop that a SliceSet
asks for. Printed are the figures of `tests.node.compare_control`, and of the loop that the agent runs, over all turns:
the time from a tick's due time to its last knob in the kernel, and what agent, loop, publisher and supervisor need of a
core and of memory. Exit code 1 where an interval of the rates carried excludes no difference by more than a tenth of
what is offered.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.controller.record.ring import STAGES_NS
from slicepilot.controller.record.ring_reader import TickReader
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.telemetry import SLICE_FIELDS
from slicepilot.testbed.backend.traffic import LOAD_PRIORITY, plan_of
from slicepilot.testbed.lifecycle.layout import SINK_ADDRESS, SINK_PORT
from slicepilot.testbed.lifecycle.processes import bin_folder
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed

from ..node.compare_control import SCENARIO, WARM_UP_S, Side, play, report
from ..node.machine import Machine, MachineError, children, pss_mib
from ..node.runtimes import until
from .agents import RunningAgent, agent, condition, install, slice_set, told
from .cluster import Cluster
from .upfs import GNB, HOST, NAMESPACE, PodUpfs, pod_upfs

PERIOD_MS = 5
READ_S, LIVE_S = 2.0, 60.0
OFFERED, CARRIED, DELAY = (SLICE_FIELDS.index(name) for name in ("offered_mbps", "carried_mbps", "delay_p99_us"))


class PodSide:
    """Five pods, and an agent that runs the loop.

    Attributes:
        latencies_us: from each tick's due time to its last knob, of turns in which a loop acted.
        costs: cores and MiB of each process, a turn each.
    """

    name = "pods"

    def __init__(self, cluster: Cluster, upfs: PodUpfs, running: RunningAgent, testbed: Testbed, plan: dict[str, Any]):
        self._cluster, self._upfs, self._running, self._testbed, self._plan = cluster, upfs, running, testbed, plan
        self.latencies_us: list[float] = []
        self.costs: dict[str, list[tuple[float, float]]] = {}

    def turn(self, name: str, seconds: float, folder: Path) -> list[float]:
        """One run of an agent; `tests.node.compare_control.FIGURES`."""
        acts = name != "as-found"
        document = slice_set(mode="live" if acts else "shadow", policy={"agent": name}, periodMs=PERIOD_MS)
        promised = self._testbed.slices.slices
        for one, like in zip(document["spec"]["slices"], promised, strict=True):
            one["weight"] = like.weight
            promise = {"committedMbps": like.sla.committed_mbps, "delayBoundMs": like.sla.delay_bound_ms}
            low, high = dataclasses.astuple(like.bounds)[0]
            one |= {"promise": promise, "bounds": {"cpuLimitMcpu": {"low": low, "high": high}}}
            one["mayExceedLimit"] = True
        self._cluster.kubectl("apply", given=document)
        state = ("True", "Live") if acts else ("False", "Shadow")
        until(lambda: self._runs(name, state), f"{told(self._cluster)}", LIVE_S)
        ring = self._running.root / "run" / f"{NAMESPACE}.video" / "ticks"
        with contextlib.closing(TickReader(ring)) as reader, self._loaded(seconds + 2 * WARM_UP_S, folder):
            time.sleep(WARM_UP_S)
            reader.new()
            cpu_s, began_s = self._cpu_s(), time.monotonic()
            parts = []
            while time.monotonic() < began_s + seconds:
                time.sleep(min(READ_S, max(0.0, began_s + seconds - time.monotonic())))
                parts.append(reader.new())
            took_s = time.monotonic() - began_s
            for what, before in cpu_s.items():
                self.costs.setdefault(what, []).append(((self._cpu_s()[what] - before) / took_s, self._mib()[what]))
        ticks = np.concatenate(parts)
        if acts:
            self.latencies_us += np.sum([1e-3 * ticks[stage] for stage in STAGES_NS], axis=0).tolist()
        carried, delay = ticks["slices"][:, CARRIED], ticks["slices"][:, DELAY]
        if not (ticks["slices"][:, OFFERED].mean(axis=0) > 0).all():
            raise RuntimeError(f"pods, {name}: a slice was sent nothing")
        bound_us = 1e3 * promised[0].sla.delay_bound_ms
        return [
            float(carried[:, 0].mean()),
            float(1e-3 * np.quantile(delay[:, 0], 0.99)),
            float(100 * (delay[:, 0] > bound_us).mean()),
            float(carried[:, 1:].mean(axis=0).sum()),
        ]

    def _runs(self, name: str, state: tuple[str, str]) -> bool:
        status = told(self._cluster)
        return condition(status, "Controlled") == state and status.get("agent") == name

    def _processes(self) -> dict[str, int]:
        """The agent's, its loop's, and those that the loop has started."""
        [loop] = self._running.loops()
        named = {"agent": self._running.pid, "loop": loop}
        for pid in children(loop):
            words = Path(f"/proc/{pid}/cmdline").read_text()
            named["publisher" if "publisher" in words else "supervisor"] = pid
        return named

    def _cpu_s(self) -> dict[str, float]:
        fields = {
            name: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            for name, pid in self._processes().items()
        }
        return {name: (int(one[11]) + int(one[12])) / os.sysconf("SC_CLK_TCK") for name, one in fields.items()}

    def _mib(self) -> dict[str, float]:
        return {name: pss_mib(pid) for name, pid in self._processes().items()}

    @contextlib.contextmanager
    def _loaded(self, seconds: float, folder: Path) -> Iterator[None]:
        machine = self._cluster.machine
        flows = [self._moved(flow) for flow in self._plan["flows"]]
        plan = machine.folder / "plan.json"
        plan.write_text(json.dumps(self._plan | {"flows": flows, "duration_s": seconds}))
        with (folder / "pods.log").open("ab") as log:
            commands = (
                ["sink", f"--listen={HOST}:{SINK_PORT}"],
                ["load", f"--plan={plan}", f"--rt={LOAD_PRIORITY}"],
            )
            started = [
                machine.start(str(bin_folder() / program), *options, stdout=log, stderr=log)
                for program, *options in commands
            ]
            try:
                yield
            finally:
                for process in started:
                    for pid in children(process.pid):  # which is in the machine
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGINT)
                    process.wait(30)

    def _moved(self, flow: dict[str, Any]) -> dict[str, Any]:
        """A flow of the testbed, through the pod of the same slice."""
        number = 1 + list(self._testbed.slices.names).index(flow["name"].partition("/")[0])
        ends = {"from": GNB, "to": self._upfs.address(self._upfs.slices[number - 1]), "teid": number}
        return flow | ends | {"ue": f"10.61.{number}.2", "dst": f"{HOST}:{SINK_PORT}"}


@contextlib.contextmanager
def sides(folder: Path, scenario: Scenario) -> Iterator[tuple[Side, PodSide]]:
    """Both, up."""
    with contextlib.ExitStack() as undo:
        spec = TestbedSpec(name="spcmp", ues=1)
        testbed = Testbed.up(spec)
        undo.callback(testbed.down)
        layout, plan = testbed.layout, plan_of(scenario, testbed, 0)
        ends = layout.ran, layout.data_network, f"{SINK_ADDRESS}:{SINK_PORT}"
        (folder / "machine").mkdir(mode=0o755)
        machine = Machine(folder / "machine")
        undo.callback(machine.close)
        cluster = Cluster(machine)
        upfs = undo.enter_context(pod_upfs(cluster, len(layout.slices), burn_ns=round(1e3 * spec.burn_us)))
        # Its group weighs as much as the groups of all slices of the testbed, which lie beside everybody else's.
        shares = machine.group_of(upfs.pid(1)).parents[3] / "cpu.shares"
        shares.write_text(str(1024 * len(layout.slices)))
        options = ("--allow-exceed-limit",)
        running = undo.enter_context(agent(cluster, install(cluster), options=options))
        yield Side("testbed", plan, *ends, ["--name", spec.name]), PodSide(cluster, upfs, running, testbed, plan)
        cluster.kubectl("-n", NAMESPACE, "delete", "sls", "--all")


def main(arguments: list[str]) -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--agents", default="as-found,static-weights-64")
    options = parser.parse_args(arguments)
    agents = options.agents.split(",")
    scenario = Scenario.from_yaml(SCENARIO)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            with sides(folder, scenario) as both:
                found = play(both, agents, options.turns, options.seconds, folder)
        except MachineError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    pods = both[1]
    same = report(agents, found, scenario, second=pods.name)
    if pods.latencies_us:
        levels = np.quantile(pods.latencies_us, [0.5, 0.99, 0.999])
        print(
            f"knobs in the kernel after a tick's due time: p50 {levels[0]:.0f}, p99 {levels[1]:.0f}, p99.9 "
            f"{levels[2]:.0f} us of {len(pods.latencies_us):,} ticks of {PERIOD_MS} ms"
        )
    means = {name: np.mean(costs, axis=0) for name, costs in pods.costs.items()}
    for name, (cores, mib) in means.items():
        print(f"{name}: {100 * cores:.1f}% of a core, {mib:.0f} MiB")
    cores, mib = np.sum(list(means.values()), axis=0)
    print(f"all of them: {100 * cores:.1f}% of a core, {mib:.0f} MiB")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
