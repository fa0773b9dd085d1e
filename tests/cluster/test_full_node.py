"""A node that has not the CPU time for what pods that follow their loops would get."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.node.runtimes import until

from .agents import RunningAgent, agent, condition, install, reported, slice_set
from .cluster import NODE, Cluster
from .rings import goes_on
from .upfs import NAMESPACE, PodUpfs, pod_upfs

pytestmark = pytest.mark.slow
COUNT, LIMIT = 2, "200m"
WITHIN_S, AGAIN_S = 30.0, 90.0  # what waits for room is looked at again by the kubelet after a while


@pytest.fixture(scope="module", name="upfs")
def _upfs(cluster: Cluster) -> Iterator[PodUpfs]:
    """What a node has is held against requests alone; pods of this class request what they are limited to."""
    with pod_upfs(cluster, COUNT, limit=LIMIT, guaranteed=True) as upfs:
        yield upfs


@pytest.fixture(name="running")
def _running(cluster: Cluster, upfs: PodUpfs) -> Iterator[RunningAgent]:
    """All is restored afterwards."""
    before = upfs.knobs()
    with agent(cluster, install(cluster, follow={"allowed": True}), options=["--allow-follow"]) as running:
        yield running
        cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video")
        until(lambda: done(cluster) == [LIMIT] * COUNT, f"{done(cluster)}", AGAIN_S)
        until(lambda: upfs.knobs() == before, f"{before} became {upfs.knobs()}", WITHIN_S)
    assert all(item["restartCount"] == 0 for item in containers(cluster))


def following(high_mcpu: float) -> dict[str, Any]:
    """Loops ask for no limit, so that pods are to have the most that is declared."""
    document = slice_set(count=COUNT)
    for item in document["spec"]["slices"]:
        item["follow"] = {"cpuLimitMcpu": {"low": 100, "high": high_mcpu}}
    return document


def containers(cluster: Cluster) -> list[dict[str, Any]]:
    pods = sorted(cluster.get("-n", NAMESPACE, "pods")["items"], key=lambda item: str(item["metadata"]["name"]))
    return [item["status"]["containerStatuses"][0] for item in pods]


def done(cluster: Cluster) -> list[str]:
    """Limits as the kubelet says that they are."""
    return [str(item["resources"]["limits"]["cpu"]) for item in containers(cluster)]


def degraded(cluster: Cluster) -> str:
    [line] = [item["message"] for item in reported(cluster)["conditions"] if item["type"] == "Degraded"]
    return str(line)


def test_what_a_node_could_never_do_is_reported_and_not_tried_again(cluster: Cluster, running: RunningAgent) -> None:
    whole = int(cluster.get("node", NODE)["status"]["allocatable"]["cpu"])
    cluster.kubectl("apply", given=following(1000 * whole + 1000))
    until(lambda: condition(reported(cluster), "Controlled") == ("True", "Live"), f"{reported(cluster)}", WITHIN_S)
    [loop] = running.loops()
    until(lambda: condition(reported(cluster), "Degraded") == ("True", "NotFollowed"), f"{reported(cluster)}", WITHIN_S)
    until(lambda: degraded(cluster).count("infeasible: ") == COUNT, degraded(cluster), WITHIN_S)
    assert done(cluster) == [LIMIT] * COUNT
    assert goes_on(running, loop)


def test_what_a_node_has_no_room_for_now_waits_and_says_so(cluster: Cluster, running: RunningAgent) -> None:
    whole = 1000 * int(cluster.get("node", NODE)["status"]["allocatable"]["cpu"])
    most = whole - 400  # for the first, beside the other as it was
    cluster.kubectl("apply", given=following(most))
    until(lambda: condition(reported(cluster), "Degraded") == ("True", "NotFollowed"), f"{reported(cluster)}", WITHIN_S)
    until(lambda: "its resize waits: Deferred: " in degraded(cluster), degraded(cluster), WITHIN_S)
    until(lambda: sorted(done(cluster)) == sorted([LIMIT, f"{most}m"]), f"{done(cluster)}", WITHIN_S)
    [loop] = running.loops()
    assert goes_on(running, loop)
    cluster.kubectl("apply", given=following(most / 2))
    until(lambda: done(cluster) == [f"{most // 2}m"] * COUNT, f"{done(cluster)}: {reported(cluster)}", AGAIN_S)
    until(lambda: condition(reported(cluster), "Degraded") == ("False", "AsDeclared"), f"{reported(cluster)}", WITHIN_S)
