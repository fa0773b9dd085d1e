"""Somebody who may write SliceSets of one namespace: what he can have moved, and what he cannot."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.node.runtimes import until

from .agents import SYSTEM, agent, condition, install, slice_set
from .cluster import BUILT, NODE, PAUSE, Cluster
from .upfs import NAMESPACE, PodUpfs, shares

GUEST = "guest"
COUNT = 2
WITHIN_S = 60.0
RULES = [
    {
        "apiGroups": ["slicepilot.dev"],
        "resources": ["slicesets"],
        "verbs": ["get", "list", "create", "update", "patch", "delete"],
    }
]
RIGHTS = "rbac.authorization.k8s.io"


def kubectl(cluster: Cluster, *arguments: str, given: Any = None) -> tuple[int, str]:
    """`kubectl` as the tenant; exit code and all that it said."""
    command = [str(BUILT / "kubectl"), "--kubeconfig", str(cluster.folder / "tenant.yaml"), *arguments]
    if given is not None:
        path = cluster.folder / "tenant-given.yaml"
        path.write_text(yaml.safe_dump(given))
        command += ["-f", str(path)]
    process = cluster.machine.start(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=60)
    return process.returncode, str(out)


def guests(name: str = "mine", **spec: Any) -> dict[str, Any]:
    """A SliceSet of his, whose selectors are those of the UPFs of others."""
    document = slice_set(name, COUNT, "live", **spec)
    document["metadata"]["namespace"] = GUEST
    return document


def seen(cluster: Cluster, name: str = "mine") -> dict[str, Any]:
    result = cluster.get("-n", GUEST, "nsls")["items"]
    statuses = [item.get("status") or {} for item in result if item["spec"]["sliceSet"] == name]
    return statuses[0] if statuses else {}


@pytest.fixture(scope="module", name="upfs")
def _upfs(cluster: Cluster) -> Iterator[PodUpfs]:
    upfs = PodUpfs(cluster, COUNT)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "not-a-upf", "namespace": GUEST, "labels": {"app": "upf", "slice": "1"}},
        "spec": {
            "containers": [{"name": "upf", "image": PAUSE, "imagePullPolicy": "Never"}],
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
        },
    }
    role = {"apiVersion": f"{RIGHTS}/v1", "metadata": {"name": "slices", "namespace": GUEST}}
    binding = {
        "roleRef": {"apiGroup": RIGHTS, "kind": "Role", "name": "slices"},
        "subjects": [{"kind": "User", "apiGroup": RIGHTS, "name": "tenant"}],
    }
    cluster.kubectl("create", "namespace", GUEST)
    rights = [role | {"kind": "Role", "rules": RULES}, role | {"kind": "RoleBinding"} | binding]
    cluster.kubectl("apply", given=[pod, *rights])
    cluster.wait("-n", GUEST, "pod/not-a-upf", "--for=condition=Ready")
    access = install(cluster)
    try:
        with agent(cluster, access, "for-tenant"):
            yield upfs
    finally:
        upfs.end_sessions()
        cluster.kubectl("delete", "namespace", NAMESPACE, GUEST, "--timeout=60s")


def groups(upfs: PodUpfs) -> list[Any]:
    return [upfs.group(number) for number in range(1, COUNT + 1)]


REFUSED: dict[str, tuple[tuple[str, ...], Any]] = {
    "a SliceSet elsewhere": (("create",), slice_set()),
    "all SliceSets": (("get", "sls", "-A"), None),
    "pods": (("-n", GUEST, "get", "pods"), None),
    "pods of others": (("-n", NAMESPACE, "get", "pods"), None),
    "what agents say": (("-n", GUEST, "get", "nsls"), None),
    "secrets of the agents": (("-n", SYSTEM, "get", "secrets"), None),
    "a token of theirs": (("-n", SYSTEM, "create", "token", "slicepilot-agent"), None),
    "their Lease": (("-n", SYSTEM, "delete", "lease", f"slicepilot-{NODE}"), None),
    "nodes": (("get", "nodes"), None),
    "definitions": (("delete", "crd", "slicesets.slicepilot.dev"), None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_he_may_nothing_else(cluster: Cluster, upfs: PodUpfs, name: str) -> None:
    del upfs
    arguments, given = REFUSED[name]
    code, out = kubectl(cluster, *arguments, given=given)
    assert code != 0
    assert "forbidden" in out.lower(), out


def test_selectors_do_not_reach_pods_of_others(cluster: Cluster, upfs: PodUpfs) -> None:
    result = shares(groups(upfs))
    code, out = kubectl(cluster, "apply", given=guests())
    assert code == 0, out
    until(lambda: seen(cluster) != {}, "no word of it", WITHIN_S)
    until(lambda: condition(seen(cluster), "Controlled") == ("True", "Live"), "not live", WITHIN_S)  # on his own pod
    assert [item.get("pod") for item in seen(cluster)["slices"]] == ["not-a-upf"]
    assert shares(groups(upfs)) == result
    code, out = kubectl(cluster, "-n", GUEST, "patch", "sls", "mine", "--subresource=status", "--type=merge",
                      "-p", '{"status": {"kept": "9/9"}}')  # fmt: skip
    assert code != 0
    assert "forbidden" in out.lower(), out
    code, out = kubectl(cluster, "-n", GUEST, "delete", "sls", "mine")
    assert code == 0, out
    until(lambda: seen(cluster) == {}, "its object stays", WITHIN_S)


PATHS = {
    "a bundle elsewhere": {"policy": {"bundle": {"shipped": "../../../../etc"}}},
    "a bundle by its path": {"policy": {"bundle": {"shipped": "/etc/slicepilot"}}},
    "a guard elsewhere": {"guard": {"shipped": "../../../../etc/passwd"}},
    "a guard by its path": {"guard": {"shipped": "/etc/passwd"}},
    "an agent that is none": {"policy": {"agent": "../../x"}},
    "a volume of others": {"policy": {"bundle": {"volume": {"name": "x", "digest": "0" * 64}}}},
}


@pytest.mark.parametrize("name", PATHS)
def test_names_lead_to_no_file(cluster: Cluster, upfs: PodUpfs, name: str) -> None:
    result = shares(groups(upfs))
    code, out = kubectl(cluster, "apply", given=guests("path", **PATHS[name]))
    if code == 0:
        refused = ("False", "Invalid"), ("False", "NotFetched")
        until(lambda: condition(seen(cluster, "path"), "Ready") in refused, f"{seen(cluster, 'path')}", WITHIN_S)
        kubectl(cluster, "-n", GUEST, "delete", "sls", "path")
        until(lambda: seen(cluster, "path") == {}, "its object stays", WITHIN_S)
    else:
        assert "Invalid value" in out or "Unsupported value" in out, out
    assert shares(groups(upfs)) == result
