"""Checks of the API server, and of how this node's kubelet divides CPU time.

Kubelet's settings: KubeletConfiguration (kubelet.config.k8s.io/v1beta1), from the node's own files where they are here,
else from ``/configz`` through the API server. Its CPU manager writes its policy to ``cpu_manager_state``.
https://kubernetes.io/docs/tasks/administer-cluster/cpu-management-policies/
https://kubernetes.io/docs/tasks/configure-pod-container/resize-container-resources/
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slicepilot.cluster.resources.names import path
from slicepilot.cluster.resources.slice_set import declared
from slicepilot.configs import ConfigError
from slicepilot.configs.backends import Check
from slicepilot.configs.limited_yaml import parse_yaml
from slicepilot.configs.reading import read_file
from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.kernel_file import ActuatorError

from .reader import ClusterReader, checked

KUBELET = Path("/var/lib/kubelet")
MOST_BYTES = 1 << 20


def api_checks(cluster: ClusterReader) -> list[Check]:
    """Whether the server answers, and whether pods can be resized in place."""
    version = cluster.get("/version")
    if version.document is None:
        return [checked("API server", False, version.why or "none", "give a kubeconfig: --kubeconfig FILE")]
    resources = cluster.get("/api/v1").document or {}
    resize = any(item.get("name") == "pods/resize" for item in resources.get("resources") or ())
    return [
        checked("API server", True, str(version.document.get("gitVersion", "version not known"))),
        checked(
            "in-place resize",
            resize,
            "pods/resize" if resize else "none",
            "Kubernetes 1.33 or later; cgroups are written by the agent without it",
        ),
    ]


def kubelet_checks(cluster: ClusterReader, node: str, folder: Path = KUBELET) -> list[Check]:
    """The CPU manager's policy, and the version of cgroups."""
    settings, why = _settings(cluster, node, folder)
    policy = _state_policy(folder) or settings.get("cpuManagerPolicy")
    if policy is None and settings:
        policy = "none"
    return [
        checked(
            "CPU manager",
            policy == "none",
            str(policy) if policy else why,
            "pods with exclusive CPUs (Guaranteed, whole CPUs) have nothing that weights divide, and are not resized"
            if policy
            else "set cpuManagerPolicy: none in the kubelet's configuration",
        ),
        _hierarchy(),
    ]


def slice_pods(cluster: ClusterReader, node: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The pods of this node that declared slices select: the slice's name, and the pod in the API's JSON."""
    pods = cluster.get("/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"}).items
    for document in cluster.get(path("slicesets")).items:
        try:
            declared_set = declared(document)
        except ConfigError:  # the agent reports it
            continue
        for item in declared_set.slices:
            for pod in pods:
                meta = pod.get("metadata") or {}
                if meta.get("namespace") == declared_set.namespace and item.pods.fits(meta.get("labels") or {}):
                    yield f"{declared_set.namespace}/{declared_set.name}/{item.name}", pod


def _hierarchy() -> Check:
    try:
        version = CpuHierarchy.find().version
    except ActuatorError as error:
        return checked("cgroup", False, str(error), "mount the cpu controller of cgroup v1 or v2")
    hint = "Kubernetes has deprecated version 1: systemd.unified_cgroup_hierarchy=1 on the kernel's command line"
    return checked("cgroup", version == 2, f"version {version}", hint)


def _settings(cluster: ClusterReader, node: str, folder: Path) -> tuple[Mapping[str, Any], str]:
    """The kubelet's settings, or why they are not known."""
    try:
        settings = parse_yaml(read_file(folder / "config.yaml", MOST_BYTES, "kubelet"), "kubelet")
        if isinstance(settings, dict):
            return settings, ""
    except ConfigError:
        pass
    answer = cluster.get(f"/api/v1/nodes/{node}/proxy/configz")
    settings = (answer.document or {}).get("kubeletconfig")
    if isinstance(settings, dict):
        return settings, ""
    return {}, answer.why or f"no settings of the kubelet of {node}"


def _state_policy(folder: Path) -> str | None:
    try:
        state = json.loads(read_file(folder / "cpu_manager_state", MOST_BYTES, "CPU manager"))
    except (ConfigError, ValueError, RecursionError):
        return None
    policy = state.get("policyName") if isinstance(state, dict) else None
    return policy if isinstance(policy, str) and policy else None
