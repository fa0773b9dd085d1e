"""What the cluster lets be changed, and how the kubelet of this node keeps its pods' CPU time.

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

from slicepilot.cluster.resources.labels import LabelSelector
from slicepilot.cluster.resources.names import path
from slicepilot.cluster.resources.slice_set import declared
from slicepilot.configs import ConfigError
from slicepilot.configs.backends import Check
from slicepilot.configs.limited_yaml import parse_yaml
from slicepilot.configs.reading import read_file
from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.kernel_file import ActuatorError

from .asked import NEEDED_FOR, Asked

KUBELET = Path("/var/lib/kubelet")
MOST_BYTES = 1 << 20


def api_checks(asked: Asked) -> list[Check]:
    """Of the server: is it there, and can pods be resized in place?"""
    version = asked.get("/version")
    if version.found is None:
        return [Check("API server", False, version.why or "none", NEEDED_FOR, "give a kubeconfig: --kubeconfig FILE")]
    resources = asked.get("/api/v1").found or {}
    resize = any(one.get("name") == "pods/resize" for one in resources.get("resources") or ())
    return [
        Check("API server", True, str(version.found.get("gitVersion", "version not known")), NEEDED_FOR),
        Check(
            "in-place resize",
            resize,
            "pods/resize" if resize else "none",
            NEEDED_FOR,
            "Kubernetes 1.33 or later; cgroups are written by the agent without it",
        ),
    ]


def kubelet_checks(asked: Asked, node: str, folder: Path = KUBELET) -> list[Check]:
    """Of how the node divides CPU time."""
    settings, why = _settings(asked, node, folder)
    policy = _state_policy(folder) or settings.get("cpuManagerPolicy")
    if policy is None and settings:
        policy = "none"
    driver = settings.get("cgroupDriver") or ("cgroupfs" if settings else None)  # what the kubelet takes by itself
    return [
        Check(
            "CPU manager",
            policy == "none",
            str(policy) if policy else why,
            NEEDED_FOR,
            "pods with CPUs of their own (Guaranteed, whole CPUs) have nothing that weights divide, and are not resized"
            if policy
            else "look at cpuManagerPolicy of the kubelet",
        ),
        Check(
            "cgroup driver",
            driver is not None,
            str(driver) if driver else why,
            NEEDED_FOR,
            "look at cgroupDriver of the kubelet",
        ),
        _hierarchy(),
    ]


def slice_pods(asked: Asked, node: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Pods of this node that declared slices select: the slice's name, and the pod as the server has it."""
    pods = asked.get("/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"}).items
    for document in asked.get(path("slicesets")).items:
        try:
            found = declared(document)
        except ConfigError:  # which the agent tells
            continue
        for one in found.slices:
            for pod in pods:
                if _is_its(pod, found.namespace, one.pods):
                    yield f"{found.namespace}/{found.name}/{one.name}", pod


def _is_its(pod: Mapping[str, Any], namespace: str, selector: LabelSelector) -> bool:
    meta = pod.get("metadata") or {}
    return meta.get("namespace") == namespace and selector.fits(meta.get("labels") or {})


def _hierarchy() -> Check:
    try:
        version = CpuHierarchy.find().version
    except ActuatorError as error:
        return Check("cgroup", False, str(error), NEEDED_FOR, "mount the cpu controller of cgroup v1 or v2")
    hint = "Kubernetes has deprecated version 1: systemd.unified_cgroup_hierarchy=1 on the kernel's command line"
    return Check("cgroup", version == 2, f"version {version}", NEEDED_FOR, hint)


def _settings(asked: Asked, node: str, folder: Path) -> tuple[Mapping[str, Any], str]:
    """Kubelet's, and why they are not known."""
    try:
        found = parse_yaml(read_file(folder / "config.yaml", MOST_BYTES, "kubelet"), "kubelet")
        if isinstance(found, dict):
            return found, ""
    except ConfigError:
        pass
    answer = asked.get(f"/api/v1/nodes/{node}/proxy/configz")
    settings = (answer.found or {}).get("kubeletconfig")
    if isinstance(settings, dict):
        return settings, ""
    return {}, answer.why or f"no settings of the kubelet of {node}"


def _state_policy(folder: Path) -> str | None:
    try:
        found = json.loads(read_file(folder / "cpu_manager_state", MOST_BYTES, "CPU manager"))
    except (ConfigError, ValueError, RecursionError):
        return None
    policy = found.get("policyName") if isinstance(found, dict) else None
    return policy if isinstance(policy, str) and policy else None
