"""What happens to a node: its kubelet and its runtime are restarted, a UPF dies, pods are driven away and come back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.runtimes import until

from .agents import RunningAgent, agent, condition, reported, slice_set
from .cluster import NODE, Cluster
from .rings import goes_on, written
from .upfs import NAMESPACE, PodUpfs

pytestmark = pytest.mark.slow
COUNT = 2
WITHIN_S, AGAIN_S, AWAY_S = 30.0, 60.0, 100.0
WATCHED_S = 8.0


@pytest.fixture(scope="module", name="initial")
def _initial(upfs: PodUpfs) -> dict[str, str]:
    """Knobs before anything was moved."""
    return upfs.knobs()


@pytest.fixture(scope="module", name="running")
def _running(cluster: Cluster, upfs: PodUpfs, access: Path, initial: dict[str, str]) -> Iterator[RunningAgent]:
    """An agent with a loop that has moved knobs; all is restored afterwards."""
    with agent(cluster, access) as running:
        cluster.kubectl("apply", given=slice_set(count=COUNT))
        until(lambda: live(cluster) and upfs.knobs() != initial, f"{reported(cluster)}", WITHIN_S)
        yield running
        cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video")
        until(lambda: upfs.knobs() == initial, f"{initial} became {upfs.knobs()}", WITHIN_S)


def live(cluster: Cluster) -> bool:
    status = reported(cluster)
    return condition(status, "Controlled") == ("True", "Live") and len(status["slices"]) == COUNT


@pytest.mark.parametrize("name", ["kubelet", "containerd"])
def test_a_restart_of_what_runs_pods_is_no_concern_of_the_loop(
    cluster: Cluster, upfs: PodUpfs, running: RunningAgent, name: str
) -> None:
    [loop], pids, moved = running.loops(), [upfs.pid(number) for number in range(1, COUNT + 1)], upfs.knobs()
    ring = running.root / "run" / f"{NAMESPACE}.video" / "ticks"
    cluster.machine.run("systemctl", "restart", name)
    before, began_s = written(ring), time.monotonic()
    time.sleep(WATCHED_S)
    assert (written(ring) - before) / (time.monotonic() - began_s) > 50, "of 100 ticks a second"
    assert goes_on(running, loop)
    until(lambda: [upfs.pid(number) for number in range(1, COUNT + 1)] == pids, "UPFs were restarted", WITHIN_S)
    until(lambda: upfs.knobs() == moved, f"{moved} became {upfs.knobs()}", WITHIN_S)
    assert live(cluster)


def test_a_container_that_is_restarted_is_taken_up_by_the_loop_that_runs(
    cluster: Cluster, upfs: PodUpfs, running: RunningAgent, initial: dict[str, str]
) -> None:
    """The same pod, another container: group, process and id are new, namespace and address stay."""
    [loop], old = running.loops(), upfs.group(2)
    key = "2/pod/cpu.shares" if "2/pod/cpu.shares" in initial else "2/pod/cpu.weight"
    cluster.machine.run("kill", "-KILL", str(upfs.pid(2)))

    def restarted() -> bool:
        status = cluster.get("-n", NAMESPACE, "pod", upfs.slices[1])["status"]["containerStatuses"][0]
        return status["restartCount"] >= 1 and "running" in status["state"]

    until(restarted, "not restarted", AGAIN_S)
    assert upfs.group(2) != old
    upfs.sessions()
    upfs.load(seconds=20, mbps=4)
    until(lambda: upfs.knobs()[key] != initial[key], "not moved again", AGAIN_S)
    assert goes_on(running, loop)
    until(lambda: live(cluster), f"{reported(cluster)}", WITHIN_S)
    upfs.unload()


@pytest.mark.parametrize("how", ["drain", "taint"])
def test_pods_that_are_driven_away_and_come_back_are_controlled_again(
    cluster: Cluster, upfs: PodUpfs, running: RunningAgent, initial: dict[str, str], how: str
) -> None:
    if how == "drain":
        cluster.kubectl("drain", NODE, "--force", "--delete-emptydir-data", "--timeout=60s")
    else:
        cluster.kubectl("taint", "nodes", NODE, "slicepilot.test/away=:NoExecute")
    try:
        until(lambda: not running.loops(), "its loop goes on without pods", AWAY_S)
        until(lambda: condition(reported(cluster), "Ready")[0] != "True", f"{reported(cluster)}", WITHIN_S)
    finally:
        undo = ["uncordon", NODE] if how == "drain" else ["taint", "nodes", NODE, "slicepilot.test/away-"]
        cluster.kubectl(*undo)
    upfs.ready()
    upfs.sessions()
    until(lambda: live(cluster) and upfs.knobs() != initial, f"{reported(cluster)}", AGAIN_S)
