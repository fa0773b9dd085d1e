"""What the chart makes, before a real API server: by its own schemas, and by a dry run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from slicepilot.cluster.install.manifests import definitions, in_order, manifests
from slicepilot.cluster.install.values import values

from ..charts.cases import CASES
from .agents import SYSTEM
from .cluster import Cluster
from .schemas import NAMED, write_schemas

KUBECONFORM = Path(__file__).parents[2] / "build" / "charts" / "bin" / "kubeconform"
NAMESPACE = "slicepilot-dry"
PATHS = {
    "api/v1",
    "apis/admissionregistration.k8s.io/v1",
    "apis/apps/v1",
    "apis/policy/v1",
    "apis/rbac.authorization.k8s.io/v1",
    "apis/scheduling.k8s.io/v1",
    "apis/apiextensions.k8s.io/v1",
}


@pytest.fixture(scope="module", name="schemas")
def _schemas(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schemas")
    write_schemas(cluster, folder, PATHS)
    return folder


@pytest.fixture(name="namespace")
def _namespace(cluster: Cluster) -> None:
    """A dry run makes none."""
    cluster.kubectl("apply", given={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})


def conforms(schemas: Path, tmp_path: Path, documents: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    command = [str(KUBECONFORM), "-strict", "-summary", "-schema-location", f"{schemas}/{NAMED}", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def said(cluster: Cluster, *arguments: str) -> tuple[int, str]:
    """`slicepilot k8s`, and all that it prints."""
    process = cluster.machine.start("slicepilot", "k8s", *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=90)
    return process.returncode, str(out)


def known(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without those of the Prometheus operator, whose definitions this server does not have."""
    return [one for one in documents if not one["apiVersion"].startswith("monitoring.coreos.com/")]


@pytest.mark.parametrize("name", CASES)
def test_all_conform_to_the_servers_schemas(schemas: Path, tmp_path: Path, name: str) -> None:
    documents = known([*definitions(), *manifests(values(CASES[name]), NAMESPACE)])
    done = conforms(schemas, tmp_path, documents)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Valid: {len(documents)}, Invalid: 0, Errors: 0, Skipped: 0" in done.stdout


def test_a_field_that_there_is_not_does_not_conform(schemas: Path, tmp_path: Path) -> None:
    documents = manifests(values(), NAMESPACE)
    documents[-1]["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    done = conforms(schemas, tmp_path, documents)
    assert done.returncode == 1
    assert "volumeMount" in done.stdout


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("name", CASES)
def test_the_server_takes_all_in_a_dry_run(cluster: Cluster, name: str) -> None:
    documents = known(in_order([*definitions(), *manifests(values(CASES[name]), SYSTEM)]))
    out = cluster.kubectl("apply", "--server-side", "--dry-run=server", "--force-conflicts", given=documents)
    assert out.count("(server dry run)") == len(documents)
    assert "daemonsets" not in cluster.kubectl("-n", SYSTEM, "get", "ds", "-o", "name")


@pytest.mark.usefixtures("namespace")
def test_install_has_all_checked_and_stores_nothing(cluster: Cluster) -> None:
    access = ["--kubeconfig", str(cluster.folder / "admin.yaml")]
    code, out = said(cluster, "install", "--dry-run", "-n", "not-there", *access)
    assert code == 1
    assert "namespace not-there: not there" in out
    code, out = said(cluster, "install", "--dry-run", *access)
    assert code == 0, out
    assert "DaemonSet slicepilot-agent checked" in out
    assert "slicepilot-agent" not in cluster.kubectl("-n", SYSTEM, "get", "ds", "-o", "name")


@pytest.mark.usefixtures("namespace")
def test_what_helm_has_applied_is_not_taken_over_unasked(cluster: Cluster) -> None:
    [priority] = [one for one in manifests(values(), SYSTEM) if one["kind"] == "PriorityClass"]
    others = {**priority, "description": "of somebody else"}
    cluster.kubectl("apply", "--server-side", "--field-manager=helm", given=others)
    access = ["--kubeconfig", str(cluster.folder / "admin.yaml")]
    code, out = said(cluster, "install", "--dry-run", *access)
    cluster.kubectl("delete", "priorityclass", priority["metadata"]["name"])
    assert code == 1, out
    assert "PriorityClass slicepilot-agent: 409" in out
    assert "--force" in out


def test_a_namespace_that_lets_no_such_pods_in_is_told_and_uninstall_takes_all_away(cluster: Cluster) -> None:
    name, label = "narrow", {"pod-security.kubernetes.io/enforce": "baseline"}
    cluster.kubectl(
        "apply", given={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": label}}
    )
    access = ["--kubeconfig", str(cluster.folder / "admin.yaml"), "-n", name]
    code, out = said(cluster, "install", "--wait", "8", *access)
    assert code == 1, out
    assert "0 of 1 nodes have a ready agent after 8 s" in out
    assert 'violates PodSecurity "baseline' in out
    cluster.machine.run("slicepilot", "k8s", "status", *access, code=1)
    code, out = said(cluster, "uninstall", "--with-crds", *access)
    assert code == 0, out
    assert not [kind for kind in ("ds", "sa", "role") if "slicepilot" in cluster.kubectl("-n", name, "get", kind)]
    assert "slicepilot" not in cluster.kubectl(
        "get", "clusterroles,clusterrolebindings,priorityclasses,crd", "-o", "name"
    )
    cluster.kubectl("delete", "namespace", name)
