"""What `doctor --kubernetes` says of a real cluster: its server, its kubelet, and objects as Cilium makes them.

Cilium itself cannot run here (its agent sets up sch_fq, which this kernel does not have). What it would have made is
made by the test, in the same paths: its ConfigMap, its resources, its map, its state.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.charts.chart import CHART

from .cluster import NODE, PAUSE, Cluster

REPOSITORY = Path(__file__).parents[2]
SPACE = "doctored"
PIN = """
import ctypes, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.controller.actuators.cilium import machine
pin = Path("/sys/fs/bpf/tc/globals/cilium_throttle")
machine.mount_bpffs(Path("/sys/fs/bpf"))
descriptor = machine.untyped_map()
machine.pin(descriptor, pin)
library = ctypes.CDLL("libbpf.so.1")
assert library.bpf_map_update_elem(descriptor, machine.key_of(77), machine.value_of(6_250_000), ctypes.c_uint64(0)) == 0
"""


def crd(plural: str, kind: str, scope: str = "Namespaced") -> dict[str, Any]:
    """As open as it can be: what counts here is what is in the objects."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v2", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.cilium.io"},
        "spec": {
            "group": "cilium.io",
            "names": {"plural": plural, "kind": kind, "singular": kind.lower()},
            "scope": scope,
            "versions": [version],
        },
    }


CRDS = [
    crd("ciliumendpoints", "CiliumEndpoint"),
    crd("ciliumnetworkpolicies", "CiliumNetworkPolicy"),
    crd("ciliumclusterwidenetworkpolicies", "CiliumClusterwideNetworkPolicy", "Cluster"),
]


def config(**options: str) -> dict[str, Any]:
    metadata = {"name": "cilium-config", "namespace": "kube-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {**options}}


def policy(name: str, layer_7: bool) -> dict[str, Any]:
    port: dict[str, Any] = {"ports": [{"port": "80", "protocol": "TCP"}]}
    if layer_7:
        port["rules"] = {"http": [{"method": "GET"}]}
    spec = {"endpointSelector": {}, "egress": [{"toPorts": [port]}]}
    metadata = {"name": name, "namespace": SPACE}
    return {"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": metadata, "spec": spec}


IMAGE = "registry.example/cilium/cilium:v1.16.5@sha256:" + "0" * 64
AGENT = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "cilium", "namespace": "kube-system"},
    "spec": {
        "selector": {"matchLabels": {"k8s-app": "cilium"}},
        "template": {
            "metadata": {"labels": {"k8s-app": "cilium"}},
            "spec": {
                "nodeSelector": {"nowhere": "at-all"},
                "containers": [{"name": "cilium-agent", "image": IMAGE}],
            },
        },
    },
}


def pod(name: str, labels: dict[str, str], annotations: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": SPACE, "labels": labels, "annotations": annotations}
    spec = {"containers": [{"name": "main", "image": PAUSE}], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def endpoint(name: str, number: int) -> dict[str, Any]:
    metadata = {"name": name, "namespace": SPACE}
    return {"apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint", "metadata": metadata, "status": {"id": number}}


SLICES = {
    "apiVersion": "slicepilot.dev/v1alpha1",
    "kind": "SliceSet",
    "metadata": {"name": "video", "namespace": SPACE},
    "spec": {
        "policy": {"agent": "no-control"},
        "slices": [
            {
                "name": name,
                "sNssai": {"sst": 1, "sd": f"00000{index}"},
                "podSelector": {"matchLabels": {"slice": name}},
                "promise": {"committedMbps": 5, "delayBoundMs": 50},
            }
            for index, name in enumerate(("paced", "bare"), 1)
        ],
    },
}


@pytest.fixture(scope="module", name="access")
def _access(cluster: Cluster) -> Iterator[Path]:
    """A namespace with the pods of two slices, one of them annotated; the admin's kubeconfig."""
    for name in ("slicesets", "nodeslicesets"):
        cluster.kubectl("apply", "--server-side", "-f", str(CHART / "crds" / f"{name}.yaml"))
        cluster.wait(f"crd/{name}.slicepilot.dev", "--for=condition=Established")
    cluster.kubectl("create", "namespace", SPACE)
    annotations = {"kubernetes.io/egress-bandwidth": "50M", "k8s.v1.cni.cncf.io/networks": "n6-net"}
    pods = [pod("upf-0", {"slice": "paced"}, annotations), pod("upf-1", {"slice": "bare"}, {})]
    cluster.kubectl("apply", given=pods)
    cluster.wait("pod", "--all", "-n", SPACE, "--for=condition=Ready")
    cluster.kubectl("apply", given=SLICES)
    yield cluster.folder / "admin.yaml"
    cluster.kubectl("delete", "namespace", SPACE, "--timeout=60s")
    cluster.kubectl("delete", "crd", *(item["metadata"]["name"] for item in CRDS), "--ignore-not-found")
    cluster.kubectl("-n", "kube-system", "delete", "configmap/cilium-config", "ds/cilium", "--ignore-not-found")


def doctor(cluster: Cluster, access: Path, *more: str) -> dict[str, dict[str, Any]]:
    """Its findings by name."""
    command = ["slicepilot", "doctor", "--kubernetes", "--kubeconfig", str(access), "--node", NODE, "--json", *more]
    return {item["name"]: item for item in json.loads(cluster.machine.run(*command))}


def test_a_cluster_without_cilium(cluster: Cluster, access: Path) -> None:
    result = doctor(cluster, access)
    assert result["API server"]["found"].startswith("v1.")
    assert result["in-place resize"] == {
        "name": "in-place resize", "ok": True, "found": "pods/resize", "needed_for": "kubernetes",
        "hint": result["in-place resize"]["hint"],
    }  # fmt: skip
    assert (result["CPU manager"]["ok"], result["CPU manager"]["found"]) == (True, "none")
    assert result["cgroup"]["found"] in {"version 1", "version 2"}
    assert (result["Cilium"]["ok"], result["Cilium"]["found"]) == (True, "none: pods are shaped where they send")
    assert "map of rates" not in result


def test_what_keeps_cilium_from_pacing_is_named(cluster: Cluster, access: Path) -> None:
    cluster.kubectl("apply", given=CRDS)
    for item in CRDS:
        cluster.wait(f"crd/{item['metadata']['name']}", "--for=condition=Established")
    cluster.kubectl("apply", given=[AGENT, policy("fetches", True), policy("sends", False)])
    wrong = {"enable-bandwidth-manager": "false", "enable-ipsec": "true", "enable-host-legacy-routing": "true"}
    cluster.kubectl("apply", given=config(**wrong))
    result = doctor(cluster, access)
    assert (result["Cilium"]["ok"], result["Cilium"]["found"]) == (True, "v1.16.5")
    for name, reported in (
        ("bandwidth manager", "off: pods are shaped where they send"),
        ("host routing", "by the host's stack"),
        ("IPsec", "on: the bandwidth manager is off then"),
        ("L7 egress policies", f"{SPACE}/fetches"),
    ):
        assert (result[name]["ok"], result[name]["found"]) == (False, reported)
        assert result[name]["hint"]
    cluster.kubectl("-n", SPACE, "delete", "ciliumnetworkpolicy", "fetches")
    cluster.kubectl("apply", given=config(**{"enable-bandwidth-manager": "true"}))
    result = doctor(cluster, access)
    assert all(result[name]["ok"] for name in ("bandwidth manager", "host routing", "IPsec", "L7 egress policies"))
    assert (result["map of rates"]["ok"], result["map of rates"]["found"]) == (False, "none")
    assert result[f"{SPACE}/video/paced: rate"]["found"] == f"{SPACE}/upf-0 is no endpoint of Cilium"


def test_each_slices_pod_has_a_line(cluster: Cluster, access: Path) -> None:
    cluster.kubectl("apply", given=[endpoint("upf-0", 77), endpoint("upf-1", 78)])
    cluster.machine.run(sys.executable, "-c", PIN, str(REPOSITORY))
    result = doctor(cluster, access)
    assert (result["bpffs"]["ok"], result["bpffs"]["found"]) == (True, "/sys/fs/bpf")
    assert (result["map of rates"]["ok"], result["map of rates"]["found"]) == (True, "cilium_throttle, without types")
    assert (result[f"{SPACE}/video/paced: rate"]["ok"], result[f"{SPACE}/video/paced: rate"]["found"]) == (
        True, "endpoint 77: 50 Mbit/s",
    )  # fmt: skip
    bare = result[f"{SPACE}/video/bare: rate"]
    assert (bare["ok"], bare["found"]) == (False, f"endpoint 78 ({SPACE}/upf-1) has none")
    assert bare["hint"] == "annotate the pod: kubernetes.io/egress-bandwidth"
    assert result[f"{SPACE}/video/paced: networks"]["found"] == f"n6-net of {SPACE}/upf-0: Cilium does not pace these"


def test_a_right_to_look_that_lacks_is_named(cluster: Cluster, access: Path) -> None:
    del access
    cluster.kubectl("-n", SPACE, "create", "serviceaccount", "nobody")
    token = cluster.kubectl("-n", SPACE, "create", "token", "nobody").strip()
    result = doctor(cluster, cluster.write_access("nobody", token))
    assert (result["Cilium"]["ok"], result["Cilium"]["found"]) == (
        False, "not permitted; none: pods are shaped where they send",
    )  # fmt: skip
    assert result["API server"]["ok"], "versions may be read by all"


def test_a_server_that_is_away_is_an_exit_code(cluster: Cluster, access: Path, tmp_path: Path) -> None:
    away = cluster.folder / "away.yaml"
    away.write_text(access.read_text().replace(":6443", ":1"))
    command = ["slicepilot", "doctor", "--kubernetes", "--kubeconfig", str(away), "--json"]
    result = json.loads(cluster.machine.run(*command, code=1))
    assert result[0]["name"] == "API server"
    assert not result[0]["ok"]
    missing = tmp_path / "none.yaml"
    reported = cluster.machine.run("slicepilot", "doctor", "--kubernetes", "--kubeconfig", str(missing), code=2)
    assert reported == "", "errors are not on standard output"
