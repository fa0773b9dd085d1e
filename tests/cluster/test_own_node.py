"""An agent that has been taken over: its token writes what is its own node's, and nothing of other nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError
from slicepilot.cluster.resources.names import NODE_SLICE_SETS, path
from tests.charts.chart import objects
from tests.node.runtimes import until

from .agents import ACCOUNT, SYSTEM, install
from .cluster import NODE, PAUSE, Cluster

NAMESPACE, OTHER = "tenants", "node-b"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
WITHIN_S = 30.0


@pytest.fixture(scope="module", name="policy")
def _policy(cluster: Cluster) -> Iterator[None]:
    """In force; and a pod on another node, which is there in the API alone."""
    install(cluster, follow={"allowed": True, "annotations": True})
    cluster.kubectl("create", "namespace", NAMESPACE)
    pod = {"containers": [{"name": "upf", "image": PAUSE, "resources": {"limits": {"cpu": "1"}}}], "nodeName": OTHER}
    documents = [
        *(item for item in objects({}).values() if item["kind"].startswith("ValidatingAdmissionPolicy")),
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "far", "namespace": NAMESPACE}, "spec": pod},
    ]
    cluster.kubectl("apply", given=documents)
    try:
        yield
    finally:
        cluster.kubectl("-n", SYSTEM, "delete", "lease", "--all")
        names = ["validatingadmissionpolicy/slicepilot-agent", "validatingadmissionpolicybinding/slicepilot-agent"]
        cluster.kubectl("delete", *names)
        cluster.kubectl("-n", NAMESPACE, "delete", "pod", "far", "--force", "--grace-period=0")
        cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=60s")


def token(cluster: Cluster, *bound: str) -> str:
    return cluster.kubectl("-n", SYSTEM, "create", "token", ACCOUNT, "--duration=1h", *bound).strip()


def said(cluster: Cluster, who: str, *request: str) -> str:
    """By a server that knows somebody by this token: nothing where it was taken, else why not."""
    cluster.write_access("taken", who)
    script = (
        "import json, sys\n"
        "from pathlib import Path\n"
        f"from {Api.__module__} import Api\n"
        f"from {ApiError.__module__} import ApiError\n"
        "api, (method, path, document) = Api(Path(sys.argv[1])), sys.argv[2:]\n"
        "try:\n"
        "    if method == 'apply':\n"
        "        api.apply(path, json.loads(document), 'test')\n"
        "    elif method == 'create':\n"
        "        api.create(path, json.loads(document))\n"
        "    elif method == 'patch':\n"
        "        api.patch(path, json.loads(document), 'test')\n"
        "    else:\n"
        "        api.delete(path)\n"
        "except ApiError as error:\n"
        "    print(error)\n"
    )
    access = str(cluster.folder / "taken.yaml")
    return cluster.machine.run("python", "-c", script, access, *request).strip()


def of_node(node: str, name: str) -> tuple[str, str, str]:
    """An agent's own object, applied."""
    document: dict[str, Any] = {
        "apiVersion": "slicepilot.dev/v1alpha1",
        "kind": "NodeSliceSet",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"node": node, "sliceSet": "video"},
    }
    return "apply", path(NODE_SLICE_SETS, NAMESPACE, name), json.dumps(document)


def lease(name: str) -> tuple[str, str, str]:
    document = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": SYSTEM},
        "spec": {"holderIdentity": "x", "leaseDurationSeconds": 1},
    }
    return "create", LEASES, json.dumps(document)


def test_it_writes_what_is_its_own_nodes_and_nothing_of_others(cluster: Cluster, policy: None) -> None:
    del policy
    mine = token(cluster, "--bound-object-kind", "Node", "--bound-object-name", NODE)
    nobodys = token(cluster)
    until(lambda: "token says which node" in said(cluster, nobodys, *lease("slicepilot-x")), "not in force", WITHIN_S)
    assert said(cluster, mine, *of_node(NODE, "video.mine")) == ""
    assert said(cluster, mine, *lease(f"slicepilot-{NODE}")) == ""
    assert said(cluster, mine, *lease("slicepilot-summary")) == ""
    assert "NodeSliceSets of its own node" in said(cluster, mine, *of_node(OTHER, "video.theirs"))
    assert "Lease of its own node" in said(cluster, mine, *lease(f"slicepilot-{OTHER}"))
    # What is there already: neither turned into somebody else's, nor taken away, nor its status written.
    cluster.kubectl("apply", given=json.loads(of_node(OTHER, "video.theirs")[2]))
    theirs = path(NODE_SLICE_SETS, NAMESPACE, "video.theirs")
    assert "NodeSliceSets of its own node" in said(cluster, mine, "delete", theirs, "{}")
    assert "neither node nor sliceSet changes" in said(cluster, mine, *of_node(NODE, "video.theirs"))
    status = {**json.loads(of_node(OTHER, "video.theirs")[2]), "status": {"kept": "5/5"}}
    where = path(NODE_SLICE_SETS, NAMESPACE, "video.theirs", status=True)
    assert "NodeSliceSets of its own node" in said(cluster, mine, "apply", where, json.dumps(status))
    assert said(cluster, mine, "delete", path(NODE_SLICE_SETS, NAMESPACE, "video.mine"), "{}") == ""
    cluster.kubectl("-n", NAMESPACE, "delete", "nsls", "--all")
    # Pods of other nodes, whatever the role allows.
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods/far"
    labels = json.dumps({"metadata": {"labels": {"a": "b"}}})
    assert "pods of its own node" in said(cluster, mine, "patch", pods, labels)
    limits = {"spec": {"containers": [{"name": "upf", "resources": {"limits": {"cpu": "2"}}}]}}
    assert "pods of its own node" in said(cluster, mine, "patch", f"{pods}/resize", json.dumps(limits))
