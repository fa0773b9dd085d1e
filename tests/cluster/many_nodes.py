"""What many agents ask of an API server: at the start, all at once, in the steady state, and when it is started anew.

    python -m tests.cluster.many_nodes [--nodes 1000] [--seconds 120] [--processes 4] [--json]

As root; starts a cluster of its own (``make k8s-test`` builds it). Nodes are objects with one UPF pod each. Their
agents are the real parts that talk to the server (lists and watches, Leases, plans, status, Events, sums), a few
hundred of them in a process, without loops: what loops would say changes each second. One agent is whole, a
process of its own, that sums up; its memory is reported. Requests are those of the server's own audit,
watches left out, as the limit is about what is requested again and again.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from slicepilot.cluster.agent.agent import SUMMARY_POLL_S
from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError
from slicepilot.cluster.client.lease import Lease
from slicepilot.cluster.client.reflector import Reflector, Source
from slicepilot.cluster.loops.manager import LoopState
from slicepilot.cluster.loops.reading import LoopFigures, SliceFigures
from slicepilot.cluster.plan.plan import Planner
from slicepilot.cluster.resources.names import SLICE_SETS, SUMMARY, path
from slicepilot.cluster.resources.pod import Pod
from slicepilot.cluster.status.events import Events
from slicepilot.cluster.status.report import report
from slicepilot.cluster.status.status_writer import StatusWriter
from slicepilot.cluster.status.summary import Summary
from tests.node.machine import Machine, booted, children

from .agents import ACCOUNT, SYSTEM, install
from .cluster import Cluster

NAMESPACE = "core"
WHOLE = "whole"
READY_S = 300.0
SERVER_AWAY_S = 10.0


class SimulatedNode:
    """An agent's part that talks to the server."""

    def __init__(self, access: Path, name: str) -> None:
        self._api = Api(access)
        self.name, self._figures = name, random.Random(name)
        self._changed = threading.Event()
        self._slice_sets = Reflector(self._api, Source(path(SLICE_SETS), {}), self._changed.set)
        pods = Source("/api/v1/pods", {"fieldSelector": f"spec.nodeName={name}"})
        self._pods = Reflector(self._api, pods, self._changed.set, Pod.of)
        node = Source("/api/v1/nodes", {"fieldSelector": f"metadata.name={name}"}, metadata_only=True)
        self._node = Reflector(self._api, node, self._changed.set, lambda item: item["metadata"].get("labels") or {})
        self._events = Events(self._api, name)
        self._writer = StatusWriter(self._api, name, self._events)
        self._lease = Lease(self._api, SYSTEM, f"slicepilot-{name}", name)
        self._summing = Lease(self._api, SYSTEM, SUMMARY, name, poll_s=SUMMARY_POLL_S)
        self._summary = Summary(self._api, self._slice_sets.objects, self._changed.set, lambda text, wait_s: None)
        self._planner = Planner()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for item in (self._slice_sets, self._pods, self._node):
            item.start()
        while True:
            time.sleep(1.0)
            now_s = time.monotonic()
            if self._slice_sets.synced and self._pods.synced and self._node.synced and self._lease.held:
                labels = (self._node.objects() or [{}])[0]
                plans = self._planner.plan(self._slice_sets.objects(), self._pods.objects(), labels, now_s)
                self._writer.post({plan.identity.uid: (plan.identity, report(plan, self._state())) for plan in plans})
            for step in (self._lease.step, self._writer.step, self._events.step, self._summing.step, self._sum):
                try:
                    step(now_s)
                except ApiError:
                    continue

    def _state(self) -> LoopState:
        rate = self._figures.uniform(5, 50)
        item = SliceFigures("a", True, True, 100, rate, rate, rate / 10, {"nice": -5.0}, "policy", safe=False)
        return LoopState(figures=LoopFigures("live", (), "queue-greedy", False, (), (item,)))

    def _sum(self, now_s: float) -> None:
        self._summary.step(now_s, self._summing.held and self._slice_sets.synced)


def simulate(access: Path, names: list[str]) -> None:
    """Agents of these nodes, until this process is ended."""
    nodes = [SimulatedNode(access, name) for name in names]
    print(f"{len(nodes)} started", flush=True)
    threading.Event().wait()


def populate(admin: Path, names: list[str]) -> None:
    """Nodes with a pod each that runs, by what the API server has."""
    api = Api(admin)
    pod: dict[str, Any] = {"containers": [{"name": "upf", "image": "none", "resources": {"requests": {"cpu": "1m"}}}]}

    def make(name: str) -> None:
        api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        meta = {"name": f"upf-{name}", "namespace": NAMESPACE, "labels": {"slice": "a"}}
        spec = pod | {"nodeName": name, "automountServiceAccountToken": False}
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        api.create(pods, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        status = {"phase": "Running", "containerStatuses": [
            {"name": "upf", "state": {"running": {}}, "ready": True, "restartCount": 0, "image": "none", "imageID": ""}
        ]}  # fmt: skip
        api.patch(f"{pods}/upf-{name}/status", {"status": status}, "many-nodes")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, names))
    api.close()


class Audit:
    """The agents' requests, by the API server."""

    def __init__(self, cluster: Cluster) -> None:
        self._path = cluster.folder / "audit.log"

    def seconds(self, since_s: float) -> collections.Counter[int]:
        """How many came in each second from then on."""
        result: collections.Counter[int] = collections.Counter()
        with self._path.open() as lines:
            for line in lines:
                if ACCOUNT not in line or '"verb":"watch"' in line:
                    continue
                at = datetime.datetime.fromisoformat(json.loads(line)["requestReceivedTimestamp"]).timestamp()
                if at >= since_s:
                    result[int(at)] += 1
        return result


def reported(cluster: Cluster) -> int:
    """Nodes that the SliceSet's own status counts."""
    status = cluster.get("-n", NAMESPACE, "sls", "video").get("status") or {}
    return int(status.get("nodes") or 0)


def measure(machine: Machine, count: int, seconds: float, processes: int) -> dict[str, Any]:
    """All figures."""
    cluster = Cluster(machine)
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl("-n", NAMESPACE, "create", "serviceaccount", "default", code=None)
    access, audit = install(cluster), Audit(cluster)
    for name in ("kube-controller-manager", "kube-scheduler"):  # they would drive pods from nodes that say nothing
        machine.run("systemctl", "stop", name)
    names = [f"node-{number:04}" for number in range(count)]
    itself = ["env", f"PYTHONPATH={Path(__file__).parents[2]}", "python", "-m", "tests.cluster.many_nodes"]
    machine.run(*itself, "--populate", str(cluster.folder / "admin.yaml"), *names)
    document = {
        "apiVersion": "slicepilot.dev/v1alpha1",
        "kind": "SliceSet",
        "metadata": {"name": "video", "namespace": NAMESPACE},
        "spec": {
            "mode": "shadow",
            "policy": {"agent": "queue-greedy"},
            "slices": [
                {
                    "name": "a",
                    "sNssai": {"sst": 1},
                    "podSelector": {"matchLabels": {"slice": "a"}},
                    "promise": {"committedMbps": 1, "delayBoundMs": 50},
                }
            ],
        },
    }
    cluster.kubectl("apply", given=document)
    own = ["slicepilot", "k8s", "agent", "--node", WHOLE, "--kubeconfig", str(access)]
    log = (cluster.folder / "whole.log").open("w")
    whole = machine.start(
        *own, "--run-root", str(machine.folder / "r"), "--state-root", str(machine.folder / "s"), stdout=log, stderr=log
    )
    time.sleep(5.0)
    began_s = time.time()
    started = [machine.start(*itself, "--simulate", str(access), *names[part::processes]) for part in range(processes)]
    deadline_s = time.monotonic() + READY_S
    while reported(cluster) < count and time.monotonic() < deadline_s:
        time.sleep(1.0)
    result: dict[str, Any] = {"nodes": count, "summed_up": reported(cluster), "all_after_s": time.time() - began_s}
    result["start"] = _rates(audit.seconds(began_s))
    time.sleep(60.0)  # transitions have been reported
    steady_s = time.time()
    time.sleep(seconds)
    wanted = sum(audit.seconds(steady_s).values())
    result["steady_requests_per_node_in_10_s"] = wanted / (count + 1) / seconds * 10
    [pid] = children(whole.pid)
    result["whole_agent_mib"] = _mib(pid)
    result["simulated_agent_mib"] = sum(_mib(item) for process in started for item in children(process.pid)) / count
    cluster.machine.run("systemctl", "stop", "kube-apiserver")
    time.sleep(SERVER_AWAY_S)
    back_s = time.time()
    cluster.machine.run("systemctl", "start", "kube-apiserver")
    time.sleep(60.0)
    result["server_back"] = _rates(audit.seconds(back_s))
    for process in (*started, whole):
        for item in children(process.pid):
            os.kill(item, 9)
        process.wait(10)
    return result


def _rates(seconds: collections.Counter[int]) -> dict[str, float]:
    """Requests in all, in the worst second, and in how many seconds there were any."""
    return {
        "requests": sum(seconds.values()),
        "worst_second": max(seconds.values(), default=0),
        "seconds": len(seconds),
    }


def _mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def main() -> int:
    """Measure, or be some of the nodes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    for part in ("--simulate", "--populate"):  # in the machine
        parser.add_argument(part, nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.populate:
        populate(Path(given.populate[0]), given.populate[1:])
        return 0
    if given.simulate:
        simulate(Path(given.simulate[0]), given.simulate[1:])
        return 0
    with tempfile.TemporaryDirectory() as folder, booted(Path(folder)) as machine:
        result = measure(machine, given.nodes, given.seconds, given.processes)
    if given.json:
        print(json.dumps(result))
        return 0
    start, back = result["start"], result["server_back"]
    print(f"{result['nodes']} nodes, summed up {result['summed_up']} after {result['all_after_s']:.0f} s")
    print(
        f"start: {start['requests']} requests, {start['worst_second']} in the worst second, over {start['seconds']} s"
    )
    print(f"steady: {result['steady_requests_per_node_in_10_s']:.2f} requests a node in 10 s, watches left out")
    print(f"server started anew: {back['requests']} requests in 60 s, {back['worst_second']} in the worst second")
    print(f"a whole agent, which sums up: {result['whole_agent_mib']:.0f} MiB; ", end="")
    print(f"a simulated agent {result['simulated_agent_mib']:.1f} MiB of a process with many")
    return 0


if __name__ == "__main__":
    sys.exit(main())
