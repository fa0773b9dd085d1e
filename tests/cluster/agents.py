"""The agent of the cluster's node, as the service account that it has with what the chart allows it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.charts.chart import NAMESPACE as SYSTEM
from tests.charts.chart import objects
from tests.node.machine import children
from tests.node.runtimes import until

from .cluster import BUILT, NODE, Cluster
from .upfs import NAMESPACE

RIGHTS = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
DEFINITIONS = "CustomResourceDefinition"
ACCOUNT = "slicepilot-agent"
LEASE = f"slicepilot-{NODE}"
ROOT = Path(__file__).parents[2]


def rights(**more: Any) -> list[dict[str, Any]]:
    """Those of the chart's objects that say what an agent may do; ``more`` values of it."""
    rendered = objects({"namespace": {"create": True}, **more}).values()
    return sorted((item for item in rendered if item["kind"] in RIGHTS), key=lambda item: RIGHTS.index(item["kind"]))


def install(cluster: Cluster, **more: Any) -> Path:
    """The resources, the roles and a service account; returns its kubeconfig."""
    definitions = [item for item in objects({}).values() if item["kind"] == DEFINITIONS]
    cluster.kubectl("apply", "--server-side", "--force-conflicts", given=[*definitions, *rights(**more)])
    for name in ("slicesets", "nodeslicesets"):
        cluster.wait(f"crd/{name}.slicepilot.dev", "--for=condition=Established")
    token = cluster.kubectl("-n", SYSTEM, "create", "token", ACCOUNT, "--duration=2h").strip()
    return cluster.write_access("agent", token)


IMAGE_ENVIRONMENT = re.findall(r"\b[A-Z_]+=\d+\b", (ROOT / "deploy" / "docker" / "Dockerfile").read_text())
"""Settings of the image, where the agent runs without it."""


class RunningAgent:
    """One, in the machine."""

    def __init__(
        self,
        cluster: Cluster,
        access: Path,
        name: str = "agent",
        options: Sequence[str] = (),
        environment: Sequence[str] = (),
    ) -> None:
        self.cluster, self.root = cluster, cluster.machine.folder / name
        self.log = cluster.machine.folder / f"{name}.log"
        self.log.unlink(missing_ok=True)
        self._command = [
            "env",
            *IMAGE_ENVIRONMENT,
            *environment,
            "slicepilot",
            "k8s",
            "agent",
            "--node",
            NODE,
            "--kubeconfig",
            str(access),
            "--highest-mode",
            "live",
        ]
        self._command += ["--run-root", str(self.root / "run"), "--state-root", str(self.root / "state")]
        self._command += options
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        """(Again.)"""
        with self.log.open("ab") as out:
            self._process = self.cluster.machine.start(*self._command, stdout=out, stderr=out)
        parent = self._process.pid
        until(lambda: bool(children(parent)), "no agent")
        self.pid = children(parent)[0]

    def loops(self) -> list[int]:
        """Its loops' processes."""
        result = []
        for child in children(self.pid):
            with contextlib.suppress(OSError):
                if b"slicepilot.cli\0run" in Path(f"/proc/{child}/cmdline").read_bytes():
                    result.append(child)
        return result

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged."""
        result = []
        for line in self.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                result.append(json.loads(line))
        return [each for each in result if isinstance(each, dict)]

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.wait(10)

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
        return self._process.wait(30)


@contextlib.contextmanager
def agent(
    cluster: Cluster,
    access: Path,
    name: str = "agent",
    options: Sequence[str] = (),
    environment: Sequence[str] = (),
) -> Iterator[RunningAgent]:
    """For a block; ``environment``: words as for env(1)."""
    running = RunningAgent(cluster, access, name, options, environment)
    try:
        yield running
    finally:
        running.stop()
        print(running.log.read_text(errors="replace"))  # which pytest shows where something has failed


def slice_set(name: str = "video", count: int = 5, mode: str = "live", **spec: Any) -> dict[str, Any]:
    """A SliceSet of so many of `PodUpfs`, of which the first weighs more."""
    slices = [
        {
            "name": f"slice{i}",
            "sNssai": {"sst": 1, "sd": f"{i:06d}"},
            "podSelector": {"matchLabels": {"app": "upf", "slice": str(i)}},
            "promise": {"committedMbps": 1, "delayBoundMs": 500},
            "weight": 10 if i == 1 else 1,
        }
        for i in range(1, count + 1)
    ]
    declared = {"mode": mode, "policy": {"agent": "static-weights-9"}, "slices": slices}
    return {
        "apiVersion": "slicepilot.dev/v1alpha1",
        "kind": "SliceSet",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": declared | spec,
    }


def reported(cluster: Cluster, name: str = "video") -> dict[str, Any]:
    """Status of a SliceSet on the node; empty while there is none."""
    text = cluster.kubectl("-n", NAMESPACE, "get", "nsls", f"{name}.{NODE}", "-o", "json", code=None)
    status: dict[str, Any] = (json.loads(text).get("status") or {}) if text.strip() else {}
    return status


def summed(cluster: Cluster, name: str = "video") -> dict[str, Any]:
    """Status of a SliceSet."""
    status: dict[str, Any] = cluster.get("-n", NAMESPACE, "sls", name).get("status") or {}
    return status


def condition(status: dict[str, Any], kind: str) -> tuple[str, str]:
    """Status and reason of a condition; empty while there is none."""
    result = [each for each in status.get("conditions") or () if each["type"] == kind]
    return (result[0]["status"], result[0]["reason"]) if result else ("", "")


def refused(cluster: Cluster, documents: list[dict[str, Any]]) -> str:
    """What `kubectl apply` says to documents that the API server does not take; server-side dry run."""
    path = cluster.folder / "refused.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    command = [str(BUILT / "kubectl"), "--kubeconfig", str(cluster.folder / "admin.yaml")]
    command += ["apply", "--server-side", "--dry-run=server", "-f", str(path)]
    process = cluster.machine.start(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode != 0, f"taken: {out}"
    return str(out)
