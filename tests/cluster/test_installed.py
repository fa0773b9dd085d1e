"""The agents installed from their image, and what becomes of knobs as they are changed and taken away."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from slicepilot.controller.system.cgroup import cgroup_mounts
from slicepilot.controller.system.privileges import CAPABILITIES
from tests.charts.chart import CHART, HELM, ROOT
from tests.controller.watchdog.test_supervisor import kill_all
from tests.node.machine import children, pss_mib
from tests.node.runtimes import until

from .agents import SYSTEM, condition, reported, slice_set
from .cluster import ADDRESS, NODE, Cluster
from .upfs import NAMESPACE, PodUpfs
from .upfs import shares as shares_of

COUNT = 5
WITHIN_S, AT_ONCE_S = 120.0, 0.5
WINDOWS, WINDOW_S = 6, 8.0
IMAGE, TAG = "slicepilot.test/agent", "a1"
ARCHIVE = ROOT / "build" / "image" / "agent.tar"
VALUES = {
    "image.repository": IMAGE,
    "image.tag": TAG,
    "image.pullPolicy": "Never",
    "apiServer.host": ADDRESS,
    "apiServer.port": "6443",
    "seccomp.type": "Localhost",
    "seccomp.localhostProfile": "slicepilot.json",
}
LIVE = {"highestMode": "live"}
ALLOWED = "KILL NET_ADMIN SETGID SETUID SYS_ADMIN SYS_NICE SYS_PTRACE SETPCAP CHOWN IPC_LOCK"


@pytest.fixture(scope="module", name="upfs")
def _upfs(cluster: Cluster) -> Iterator[PodUpfs]:
    built = subprocess.run(
        [str(ROOT / "deploy" / "docker" / "build.sh"), "--tag", f"{IMAGE}:{TAG}", "--out", str(ARCHIVE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    cluster.import_archive(ARCHIVE)
    profile = (CHART / "profiles" / "seccomp.json").read_text()
    cluster.machine.write("/var/lib/kubelet/seccomp/slicepilot.json", profile)
    rights = "serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings"  # what other modules have applied
    cluster.kubectl("-n", SYSTEM, "delete", rights, "-l", "app.kubernetes.io/name=slicepilot", "--ignore-not-found")
    upfs = PodUpfs(cluster, COUNT)
    try:
        yield upfs
    finally:
        upfs.end_sessions()
        cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=60s")


@pytest.fixture(autouse=True)
def _logs(cluster: Cluster) -> Iterator[None]:
    """What agents have said, which pytest shows where something has failed."""
    yield
    for path in sorted((cluster.machine.root / "var" / "log" / "pods").glob(f"{SYSTEM}_*/agent/*.log")):
        print(path.parent.parent.name, *path.read_text(errors="replace").splitlines()[-30:], sep="\n")


def status(cluster: Cluster, *options: str, code: int = 0) -> str:
    """`slicepilot k8s status` as the admin."""
    access = ["--kubeconfig", str(cluster.folder / "admin.yaml")]
    return cluster.machine.run("slicepilot", "k8s", "status", *options, *access, code=code)


def helm(cluster: Cluster, *arguments: str) -> float:
    """As the admin, until all is ready; returns how long it took, s."""
    started_s = time.monotonic()
    environment = {"KUBECONFIG": str(cluster.folder / "admin.yaml")}
    cluster.machine.run(str(HELM), *arguments, "-n", SYSTEM, "--wait", env=environment, timeout_s=300)
    return time.monotonic() - started_s


def upgrade(cluster: Cluster, **values: str) -> float:
    """Install the chart, or change its values. Agents run under our own seccomp profile."""
    given = VALUES | values
    settings = [f"--set={name}={value}" for name, value in given.items()]
    started_s = time.monotonic()
    helm(cluster, "upgrade", "slices", str(CHART), "--install", "--create-namespace", *settings)
    # On a single node Helm does not wait for a DaemonSet: `maxUnavailable` of its pods may be missing.
    cluster.kubectl("-n", SYSTEM, "rollout", "status", "daemonset/slicepilot-agent", "--timeout=120s")
    return time.monotonic() - started_s


def shares(upfs: PodUpfs) -> list[str]:
    return shares_of(upfs.group(number) for number in range(1, COUNT + 1))


def agent_pod(cluster: Cluster) -> dict[str, Any]:
    [pod] = [item for item in cluster.get("-n", SYSTEM, "pods")["items"] if "deletionTimestamp" not in item["metadata"]]
    return dict(pod)


def agent_pid(cluster: Cluster) -> int:
    """Of the agent's process, as this machine numbers it: the machine's tasks are listed with its own numbers."""
    identity = agent_pod(cluster)["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                groups = (folder / "cgroup").read_text()
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if identity in groups and b"k8s\0agent" in line:
                return int(folder.name)
    raise AssertionError(f"no process of {identity}")


class Watcher:
    """Looks at knobs every few milliseconds, and keeps when they became others.

    Args:
        upfs: whose knobs.
        initial: as they were at first.
    """

    def __init__(self, upfs: PodUpfs, initial: list[str]) -> None:
        self.states: list[tuple[float, bool]] = []  # since when, and whether restored
        self._files = [upfs.group(number).parent / "cpu.shares" for number in range(1, COUNT + 1)]
        self._initial, self._ended = initial, threading.Event()
        self._look()  # before its maker does anything
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.003):
            self._look()

    def _look(self) -> None:
        restored = [file.read_text().strip() for file in self._files] == self._initial
        if not self.states or self.states[-1][1] != restored:
            self.states.append((time.monotonic(), restored))

    def end(self) -> list[tuple[float, bool]]:
        self._ended.set()
        self._thread.join()
        return self.states


def test_install_makes_agents_that_are_ready_with_no_more_than_they_need(cluster: Cluster, upfs: PodUpfs) -> None:
    del upfs
    status(cluster, code=1)  # nothing there
    print(f"from nothing to a ready agent: {upgrade(cluster):.1f} s")
    out = status(cluster)
    print(out)
    assert NODE in out
    assert "shadow" in out
    assert max(map(len, out.splitlines())) <= 80
    [agent] = json.loads(status(cluster, "--json"))["agents"]
    assert (agent["node"], agent["ready"], agent["highest_mode"]) == (NODE, True, "shadow")
    lines = Path(f"/proc/{agent_pid(cluster)}/status").read_text().splitlines()
    facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    held = {name for number, name in enumerate(CAPABILITIES) if int(facts["CapBnd"], 16) >> number & 1}
    assert held == {f"CAP_{name}" for name in ALLOWED.split()}
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"
    container = agent_pod(cluster)["spec"]["containers"][0]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert not container["securityContext"]["privileged"]


def test_a_sliceset_that_asks_for_more_than_is_allowed_runs_in_shadow_and_says_so(
    cluster: Cluster, upfs: PodUpfs
) -> None:
    initial = shares(upfs)
    upfs.load(seconds=60, mbps=4)
    started_s = time.monotonic()
    cluster.kubectl("apply", given=slice_set())
    until(lambda: condition(reported(cluster), "Ready") == ("True", "LoopRunning"), f"{reported(cluster)}", WITHIN_S)
    print(f"from kubectl apply to the first loop in a new container: {time.monotonic() - started_s:.1f} s")
    until(lambda: "p99Ms" in reported(cluster)["slices"][0], f"{reported(cluster)}", WITHIN_S)
    assert condition(reported(cluster), "Controlled") == ("False", "ModeNotAllowed")
    assert condition(reported(cluster), "Degraded") == ("True", "ModeNotAllowed")
    [controlled] = [item for item in reported(cluster)["conditions"] if item["type"] == "Controlled"]
    assert "allows shadow at most" in controlled["message"]
    assert shares(upfs) == initial
    assert reported(cluster)["mode"] == "shadow"
    upfs.unload()


def test_an_operator_allows_it_and_knobs_move(cluster: Cluster, upfs: PodUpfs) -> None:
    initial = shares(upfs)
    took_s = upgrade(cluster, **LIVE)
    until(lambda: shares(upfs) != initial, "nothing was moved", WITHIN_S)
    print(f"from shadow to live: {took_s:.1f} s of rolling out")
    until(lambda: condition(reported(cluster), "Controlled") == ("True", "Live"), "not reported", WITHIN_S)
    assert condition(reported(cluster), "Degraded")[0] == "False"


def family(pid: int) -> dict[int, str]:
    """A process and all below it, with their command lines."""
    commands, parents = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    below = [pid]
    while below:
        item = below.pop()
        commands[item] = Path(f"/proc/{item}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        below += [child for child, parent in parents.items() if parent == item]
    return commands


def test_agent_loop_publisher_and_supervisor_have_less_than_350_mib(cluster: Cluster) -> None:
    time.sleep(float(os.environ.get("SLICEPILOT_SETTLE_S", "0")))  # they are as large as ever after four minutes
    processes = family(agent_pid(cluster))
    each = by_name(processes)
    assert sorted(each.values()) == sorted(processes), processes
    taken = {name: pss_mib(pid) for name, pid in each.items()}
    print("; ".join(f"{name}: {mib:.0f} MiB" for name, mib in taken.items()), f"in all {sum(taken.values()):.0f} MiB")
    for pid in processes:
        mapped = Path(f"/proc/{pid}/maps").read_text()
        assert "numpy" in mapped or pid == each["watchdog.supervisor"]
        in_loop = pid == each["slicepilot.cli run"]
        assert in_loop or not any(name in mapped for name in ("llvmlite", "onnxruntime"))
    assert sum(taken.values()) < 350.0


def test_agent_loop_publisher_and_supervisor_take_less_than_5_percent_of_a_core(
    cluster: Cluster, upfs: PodUpfs
) -> None:
    """In the best of some seconds: whatever else runs on a machine can only add to it."""
    time.sleep(float(os.environ.get("SLICEPILOT_SETTLE_S", "0")))
    each = by_name(family(agent_pid(cluster)))
    upfs.load(seconds=round(WINDOWS * WINDOW_S) + 10, mbps=4)
    time.sleep(3.0)
    taken = []
    for _ in range(WINDOWS):
        before_s, started_s = {name: cpu_s(pid) for name, pid in each.items()}, time.monotonic()
        time.sleep(WINDOW_S)
        share = 100 / (time.monotonic() - started_s)
        taken.append({name: share * (cpu_s(pid) - before_s[name]) for name, pid in each.items()})
    upfs.unload()
    sums = [sum(own.values()) for own in taken]
    least = taken[sums.index(min(sums))]
    print("; ".join(f"{name}: {pct:.1f}%" for name, pct in least.items()))
    print(f"in all {min(sums):.1f}% of a core, median {statistics.median(sums):.1f}%, at most {max(sums):.1f}%")
    assert least["slicepilot.cli run"] > 0.5, "it ticks"
    assert min(sums) < 5.0


def by_name(processes: Mapping[int, str]) -> dict[str, int]:
    """Process ids of an agent with a loop."""
    names = ("k8s agent", "slicepilot.cli run", "publisher.process", "watchdog.supervisor")
    return {name: pid for name in names for pid, line in processes.items() if name in line}


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def given_back_once(upfs: PodUpfs, initial: list[str], what: str, act: Any) -> float:
    """Do something that ends an agent and brings another: knobs are restored once in between, then move again.

    Returns:
        After how many seconds they were restored.
    """
    assert shares(upfs) != initial
    watcher = Watcher(upfs, initial)
    started_s = time.monotonic()
    try:
        act()
        until(lambda: len(watcher.states) >= 3, f"{watcher.states}", WITHIN_S)
        time.sleep(3.0)
    finally:
        states = watcher.end()
    assert [restored for _, restored in states] == [False, True, False], states
    print(
        f"{what}: knobs restored after {states[1][0] - started_s:.2f} s, for {states[2][0] - states[1][0]:.2f} s, "
        "and not again"
    )
    return states[1][0] - started_s


@pytest.fixture(name="initial")
def _initial(upfs: PodUpfs) -> list[str]:
    """Of containers that nobody has touched: cgroup version 1 gives a pod that asks for 100m this."""
    del upfs
    return ["102"] * COUNT


def test_a_change_of_the_daemonset_gives_knobs_back_once(cluster: Cluster, upfs: PodUpfs, initial: list[str]) -> None:
    before = agent_pod(cluster)["metadata"]["uid"]
    given_back_once(upfs, initial, "upgrade", lambda: upgrade(cluster, **LIVE, **{"podAnnotations.round": "two"}))
    assert agent_pod(cluster)["metadata"]["uid"] != before


def test_a_pod_that_is_deleted_gives_knobs_back_once(cluster: Cluster, upfs: PodUpfs, initial: list[str]) -> None:
    name = agent_pod(cluster)["metadata"]["name"]
    given_back_once(upfs, initial, "pod deleted", lambda: cluster.kubectl("-n", SYSTEM, "delete", "pod", name))


def test_an_agent_that_is_killed_gives_knobs_back_once(cluster: Cluster, upfs: PodUpfs, initial: list[str]) -> None:
    pid = agent_pid(cluster)
    assert children(pid)
    given_back_once(upfs, initial, "SIGKILL", lambda: os.kill(pid, signal.SIGKILL))


def groups_of(pid: int) -> list[Path]:
    """Of a container, in all hierarchies."""
    lines = (line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    named = {
        (item.root, path) for _, controllers, path in lines for item in cgroup_mounts() if item.is_named(controllers)
    }
    return [root / path.lstrip("/") for root, path in named if path != "/"]


def test_an_agents_container_that_is_killed_as_a_whole_gives_knobs_back_at_once(
    cluster: Cluster, upfs: PodUpfs, initial: list[str]
) -> None:
    """With all that is in it, as when it is out of memory; the next agent comes seconds later."""
    groups = groups_of(agent_pid(cluster))
    assert given_back_once(upfs, initial, "all of it killed", lambda: kill_all(groups)) < AT_ONCE_S


def test_a_pod_that_is_deleted_without_grace_gives_knobs_back_once(
    cluster: Cluster, upfs: PodUpfs, initial: list[str]
) -> None:
    name = agent_pod(cluster)["metadata"]["name"]
    command = ["-n", SYSTEM, "delete", "pod", name, "--grace-period=0", "--force"]
    given_back_once(upfs, initial, "pod deleted without grace", lambda: cluster.kubectl(*command))


def test_helm_uninstall_gives_knobs_back_and_leaves_the_definitions(
    cluster: Cluster, upfs: PodUpfs, initial: list[str]
) -> None:
    """SliceSets go first, as the documents say: so pods that follow their loops get their own limits back."""
    assert shares(upfs) != initial
    cluster.kubectl("delete", "slicesets", "-A", "--all")
    cluster.kubectl("wait", "--for=delete", "nodeslicesets", "-A", "--all", "--timeout=60s", code=None)
    until(lambda: shares(upfs) == initial, f"{shares(upfs)}", WITHIN_S)
    assert not cluster.get("-A", "nsls")["items"]
    print(f"helm uninstall: {helm(cluster, 'uninstall', 'slices'):.1f} s")
    until(lambda: not cluster.get("-n", SYSTEM, "pods")["items"], "the agent's pod stays", WITHIN_S)
    for kind in ("daemonsets", "serviceaccounts", "roles", "rolebindings", "poddisruptionbudgets"):
        assert "slicepilot" not in cluster.kubectl("-n", SYSTEM, "get", kind, "-o", "name")
    for kind in ("clusterroles", "clusterrolebindings", "priorityclasses"):
        assert "slicepilot" not in cluster.kubectl("get", kind, "-o", "name")
    assert cluster.kubectl("get", "crd", "-o", "name").count("slicepilot.dev") == 2
    # The agent's rights went before itself, so that it could not release its Leases.
    cluster.kubectl("-n", SYSTEM, "delete", "lease", "--all")
