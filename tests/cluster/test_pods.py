"""UPFs in pods of a real kubelet are discovered, checked, controlled, and followed when a pod is made anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node.runtimes import checked, controller, until
from tests.node.test_foreign import measured

from .cluster import Cluster
from .upfs import NAMESPACE, PodUpfs

AGAIN_S = 40.0  # a pod goes and comes


@pytest.fixture(scope="module", name="upfs")
def _upfs(cluster: Cluster) -> Iterator[PodUpfs]:
    upfs = PodUpfs(cluster)
    try:
        yield upfs
    finally:
        upfs.end_sessions()
        cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=60s")


def test_pods_are_selected_by_their_names_and_checked(upfs: PodUpfs) -> None:
    document = upfs.discovered()
    assert sorted(item["name"] for item in document["slices"]) == list(upfs.slices)
    for item in document["slices"]:
        assert item["upf"] == {"pod": {"name": item["name"], "namespace": NAMESPACE}}
        assert (item["devices"]["n3"], item["devices"]["tun"]) == ("eth0", "tun")
    for item in checked(upfs, upfs.node()).values():
        assert item["measured"]
        assert item["traffic"]["match_ratio"] > 0.99
        assert item["knobs"]["cpu_limit"]["authority"]
        assert any("the kubelet (at each resize of the pod" in note for note in item["notes"])


def test_a_pod_that_is_deleted_is_taken_up_again_and_everything_is_put_back(upfs: PodUpfs) -> None:
    """By its StatefulSet: another uid, container, cgroup, namespace and address."""
    node, before, old = upfs.node(), upfs.knobs(), upfs.group(2)
    with controller(upfs, node) as running:
        until(lambda: upfs.knobs() != before, "nothing was moved")
        upfs.cluster.kubectl("-n", NAMESPACE, "delete", "pod", upfs.slices[1])
        upfs.ready()
        assert upfs.group(2) != old
        upfs.sessions()
        upfs.load(seconds=10, mbps=4)
        until(lambda: measured(running, 2), "not measured again", AGAIN_S)
        until(lambda: upfs.knobs()["2/pod/cpu.shares"] != before["2/pod/cpu.shares"], "not moved again", AGAIN_S)
    upfs.unload()
    assert upfs.knobs() == before
