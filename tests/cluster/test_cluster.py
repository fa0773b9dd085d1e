"""The cluster itself: what the other tests take for granted."""

from __future__ import annotations

from .cluster import NODE, Cluster


def test_a_pod_runs_in_its_cgroup(cluster: Cluster) -> None:
    container = {
        "name": "main",
        "image": "slicepilot.test/pause:1",
        "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "300m"}},
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waits"}, "spec": {"containers": [container]}}
    cluster.kubectl("apply", given=pod)
    cluster.wait("pod/waits", "--for=condition=Ready")
    found = cluster.get("pod", "waits")
    assert found["spec"]["nodeName"] == NODE
    cluster.kubectl("delete", "pod", "waits", "--grace-period=1")
