"""Pods follow their loops at a real API server: a kubelet resizes them in place, and in the end they are restored."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicepilot.cluster.podsync.originals import OriginalsFile
from tests.effort import repetitions
from tests.node.runtimes import until

from .agents import RunningAgent, agent, condition, install, reported, slice_set
from .cluster import Cluster
from .upfs import NAMESPACE, PodUpfs, pod_upfs

COUNT = 5
WITHIN_S = 30.0
EVERY_S, SETTLED_S = 2.0, 3.0
HIGH = 600.0
OPTIONS = ("--allow-follow",)


@pytest.fixture(scope="module", name="upfs")
def _upfs(cluster: Cluster) -> Iterator[PodUpfs]:
    with pod_upfs(cluster, COUNT, limit="1") as upfs:
        yield upfs


@pytest.fixture(scope="module", name="access")
def _access(cluster: Cluster, upfs: PodUpfs) -> Path:
    del upfs  # first
    return install(cluster, follow={"allowed": True})


@pytest.fixture(name="running")
def _running(cluster: Cluster, access: Path) -> Iterator[RunningAgent]:
    with agent(cluster, access, options=OPTIONS) as running:
        until(lambda: any(line["event"] == "acting" for line in running.lines()), "does not act", WITHIN_S)
        yield running
        cluster.kubectl("-n", NAMESPACE, "delete", "sls", "--all")


def following(low: float = 100.0, high: float = HIGH, policy: str = "static-weights-9", **more: Any) -> dict[str, Any]:
    document = slice_set(policy={"agent": policy})
    for item in document["spec"]["slices"]:
        item["follow"] = {"cpuLimitMcpu": {"low": low, "high": high}, **more}
    return document


def pods(cluster: Cluster) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = cluster.get("-n", NAMESPACE, "pods")["items"]
    return sorted(result, key=lambda item: str(item["metadata"]["name"]))


def declared(cluster: Cluster) -> list[str]:
    """CPU limits by the pods' specifications."""
    return [str(item["spec"]["containers"][0]["resources"]["limits"]["cpu"]) for item in pods(cluster)]


def done(cluster: Cluster) -> list[str]:
    """As the kubelet says that they are."""
    return [str(item["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"]) for item in pods(cluster)]


def restarts(cluster: Cluster) -> int:
    return sum(int(item["status"]["containerStatuses"][0]["restartCount"]) for item in pods(cluster))


def quotas(upfs: PodUpfs) -> list[float]:
    """Shares of a CPU that containers may use, by the kernel."""
    groups = [upfs.group(number) for number in range(1, COUNT + 1)]
    return [
        int((group / "cpu.cfs_quota_us").read_text()) / int((group / "cpu.cfs_period_us").read_text())
        for group in groups
    ]


def resizes(cluster: Cluster) -> dict[str, list[float]]:
    """When each pod was resized, by the API server's own audit."""
    result: dict[str, list[float]] = {}
    for line in (cluster.folder / "audit.log").read_text().splitlines():
        item = json.loads(line)
        if item.get("objectRef", {}).get("subresource") == "resize" and item["responseStatus"]["code"] == 200:
            at = datetime.datetime.fromisoformat(item["requestReceivedTimestamp"])
            result.setdefault(item["objectRef"]["name"], []).append(at.timestamp())
    return result


def test_limits_settle_within_three_seconds_and_come_back(
    cluster: Cluster, upfs: PodUpfs, running: RunningAgent
) -> None:
    """The loop asks for no limit, so it has the most that it may: the pod follows, and its limit is the loop's no more
    than before afterwards."""
    before, result = upfs.knobs(), quotas(upfs)
    upfs.load(seconds=30, mbps=4)
    cluster.kubectl("apply", given=following())
    until(lambda: quotas(upfs) == pytest.approx([HIGH / 1e3] * COUNT), f"{quotas(upfs)}", WITHIN_S)
    set_s = time.monotonic()
    until(lambda: done(cluster) == ["600m"] * COUNT, f"{done(cluster)}, {declared(cluster)}", WITHIN_S)
    print(f"from limits in the kernel to limits that the kubelet has carried out: {time.monotonic() - set_s:.1f} s")
    assert time.monotonic() - set_s < SETTLED_S + 1.0  # kubectl takes its time
    until(lambda: quotas(upfs) == pytest.approx([HIGH / 1e3] * COUNT), "the kubelet's stay", WITHIN_S)
    assert condition(reported(cluster), "Degraded") == ("False", "AsDeclared")
    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video")
    until(lambda: done(cluster) == ["1"] * COUNT, f"{done(cluster)}", WITHIN_S)
    until(lambda: upfs.knobs() == before, "knobs are not restored", WITHIN_S)
    assert quotas(upfs) == result
    until(lambda: OriginalsFile(running.root / "state").pods == {}, "it is not forgotten", WITHIN_S)
    upfs.unload()


@pytest.mark.slow
def test_a_loop_that_moves_all_the_time_is_followed_at_its_pace_and_restarts_nothing(
    cluster: Cluster, upfs: PodUpfs, running: RunningAgent
) -> None:
    del running
    wanted = int(os.environ.get("SLICEPILOT_RESIZES") or repetitions(40, 100))
    before, result, began_s = upfs.knobs(), restarts(cluster), time.time()

    def changes() -> list[list[float]]:
        return [[at for at in times if at > began_s] for times in resizes(cluster).values()]

    cluster.kubectl("apply", given=following(policy="random"))
    until(lambda: sum(map(len, changes())) >= wanted, "not followed", 60 + wanted)
    gaps = sorted(later - at for times in changes() for at, later in itertools.pairwise(times))
    middle_s = gaps[len(gaps) // 2]
    print(f"{len(gaps) + COUNT} resizes of {COUNT} pods, from {gaps[0]:.2f} s on apart, median {middle_s:.2f} s")
    assert gaps[0] > EVERY_S - 0.1
    assert restarts(cluster) == result
    assert all(100 <= _mcpu(text) <= HIGH for text in declared(cluster))
    cluster.kubectl("apply", given=following(policy="random") | {"spec": following()["spec"] | {"mode": "shadow"}})
    until(lambda: done(cluster) == ["1"] * COUNT, f"{done(cluster)}", WITHIN_S)
    until(lambda: upfs.knobs() == before, f"{before} became {upfs.knobs()}", WITHIN_S)


def test_who_else_resizes_has_the_pod_and_the_loop_goes_on(
    cluster: Cluster, upfs: PodUpfs, running: RunningAgent
) -> None:
    del running
    cluster.kubectl("apply", given=following())
    until(lambda: done(cluster) == ["600m"] * COUNT, f"{done(cluster)}", WITHIN_S)
    patch = json.dumps({"spec": {"containers": [{"name": "upf", "resources": {"limits": {"cpu": "900m"}}}]}})
    command = ["-n", NAMESPACE, "patch", "pod", "upf-2-0", "--subresource", "resize", "--field-manager", "vpa-updater"]
    cluster.kubectl(*command, "--patch", patch)
    until(lambda: condition(reported(cluster), "Degraded") == ("True", "NotFollowed"), f"{reported(cluster)}", WITHIN_S)
    [line] = [item["message"] for item in reported(cluster)["conditions"] if item["type"] == "Degraded"]
    assert line == "slice slice2: vpa-updater has set 900m instead of 600m: left to them"
    until(lambda: quotas(upfs) == pytest.approx([HIGH / 1e3] * COUNT), "the loop has yielded, too", WITHIN_S)
    assert declared(cluster) == ["600m", "900m", "600m", "600m", "600m"]
    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video")
    until(lambda: done(cluster) == ["1", "900m", "1", "1", "1"], f"{done(cluster)}", WITHIN_S)
    until(lambda: quotas(upfs) == pytest.approx([1.0, 0.9, 1.0, 1.0, 1.0]), "not what is declared by now", WITHIN_S)
    cluster.kubectl(*command, "--patch", patch.replace("900m", "1"))
    until(lambda: done(cluster) == ["1"] * COUNT, f"{done(cluster)}", WITHIN_S)


def test_what_an_agent_that_was_killed_has_left_the_next_one_gives_back(
    cluster: Cluster, upfs: PodUpfs, access: Path
) -> None:
    before = upfs.knobs()
    with agent(cluster, access, options=OPTIONS) as running:
        cluster.kubectl("apply", given=following())
        until(lambda: done(cluster) == ["600m"] * COUNT, f"{done(cluster)}", WITHIN_S)
        running.kill()
        cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video")
        time.sleep(EVERY_S)
        assert declared(cluster) == ["600m"] * COUNT
        running.start()
        until(lambda: done(cluster) == ["1"] * COUNT, f"{done(cluster)}", WITHIN_S)
        until(lambda: upfs.knobs() == before, f"{before} became {upfs.knobs()}", WITHIN_S)


def test_an_agent_that_ends_gives_back_what_is_not_declared_any_more(
    cluster: Cluster, upfs: PodUpfs, access: Path
) -> None:
    """So that nothing stays where an installation is taken away: SliceSets first, and agents right after them."""
    before = upfs.knobs()
    with agent(cluster, access, options=OPTIONS) as running:
        cluster.kubectl("apply", given=following())
        until(lambda: done(cluster) == ["600m"] * COUNT, f"{done(cluster)}", WITHIN_S)
        cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video")
        until(lambda: not running.loops(), "its loop goes on", WITHIN_S)
        assert running.stop() == 0
        assert declared(cluster) == ["1"] * COUNT
    until(lambda: upfs.knobs() == before, f"{before} became {upfs.knobs()}", WITHIN_S)


def test_without_leave_of_the_operator_no_pod_is_touched(cluster: Cluster, upfs: PodUpfs, access: Path) -> None:
    del upfs
    with agent(cluster, access):
        cluster.kubectl("apply", given=following())
        until(
            lambda: condition(reported(cluster), "Degraded") == ("True", "NotFollowed"),
            f"{reported(cluster)}",
            WITHIN_S,
        )
        until(lambda: condition(reported(cluster), "Controlled") == ("True", "Live"), f"{reported(cluster)}", WITHIN_S)
        time.sleep(EVERY_S)
        assert declared(cluster) == ["1"] * COUNT
        cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video")


def _mcpu(text: str) -> float:
    return float(text.removesuffix("m")) * (1 if text.endswith("m") else 1000)
