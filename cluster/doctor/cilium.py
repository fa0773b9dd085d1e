"""Checks whether Cilium paces pods on this node, and what prevents it.

Settings: ConfigMap ``cilium-config`` (the agent's options by name). What the bandwidth manager does not do:
https://docs.cilium.io/en/stable/network/kubernetes/bandwidth-manager/ (Limitations), and pkg/datapath/linux/bandwidth,
``probe``, which switches it off with IPsec.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slicepilot.configs.backends import Check
from slicepilot.controller.actuators.cilium.choice import ANNOTATION, CiliumPaths
from slicepilot.controller.actuators.cilium.endpoints import Endpoint, endpoints
from slicepilot.controller.actuators.cilium.rate import words
from slicepilot.controller.actuators.cilium.throttle import ThrottleMap
from slicepilot.controller.system.kernel_file import ActuatorError

from .reader import Answer, ClusterReader, checked

CONFIG = "/api/v1/namespaces/kube-system/configmaps/cilium-config"
AGENT = "/apis/apps/v1/namespaces/kube-system/daemonsets/cilium"
POLICIES = ("/apis/cilium.io/v2/ciliumnetworkpolicies", "/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies")
MULTUS = "k8s.v1.cni.cncf.io/networks"
BPF_FS_MAGIC = 0xCAFE4A11  # linux/magic.h


def cilium_checks(cluster: ClusterReader, paths: CiliumPaths) -> list[Check]:
    """Whether Cilium is there, with its bandwidth manager on."""
    config = cluster.get(CONFIG)
    if config.document is None:
        there = paths.state.is_dir()
        state = "state of its agent is on this node" if there else "none: pods are shaped where they send"
        return [checked("Cilium", not config.why, f"{config.why}; {state}" if config.why else state, _RIGHTS)]
    options = {str(key): str(value) for key, value in (config.document.get("data") or {}).items()}
    manager, ipsec = _on(options, "enable-bandwidth-manager"), _on(options, "enable-ipsec")
    routed = not _on(options, "enable-host-legacy-routing")
    return [
        checked("Cilium", True, _version(cluster.get(AGENT))),
        checked(
            "bandwidth manager",
            manager,
            "on" if manager else "off: pods are shaped where they send",
            "to have Cilium pace pods: bandwidthManager.enabled=true in its chart",
        ),
        checked(
            "host routing",
            routed,
            "by BPF" if routed else "by the host's stack",
            "bpf.hostLegacyRouting=false: else pacing costs delay, and BBR cannot be had",
        ),
        checked(
            "IPsec",
            not ipsec,
            "on: the bandwidth manager is off then" if ipsec else "off",
            "WireGuard (encryption.type=wireguard), or shapers in the pods",
        ),
        _policies(cluster),
    ]


def map_checks(paths: CiliumPaths) -> list[Check]:
    """Checks of Cilium's pinned map on this node."""
    mounted = _is_bpffs(paths.pin.parents[2]) or _is_bpffs(paths.pin.parent)
    checks = [
        checked(
            "bpffs",
            mounted,
            str(paths.pin.parents[2]) if mounted else f"not at {paths.pin.parents[2]}",
            "in a container: mount the host's /sys/fs/bpf",
        )
    ]
    try:
        with contextlib.closing(ThrottleMap(paths.pin)) as throttle:
            types = "with Cilium's types" if throttle.typed else "without types"
            return [*checks, checked("map of rates", True, f"{paths.pin.name}, {types}")]
    except ActuatorError as error:
        state = "none" if error.vanished else str(error)
        hint = "it comes with the bandwidth manager" if error.vanished else "see docs/cilium.md"
        return [*checks, checked("map of rates", False, state, hint)]


def pod_checks(
    cluster: ClusterReader, paths: CiliumPaths, pods: Iterable[tuple[str, Mapping[str, Any]]]
) -> list[Check]:
    """Checks of each declared slice's pod on this node.

    Args:
        pods: name of the slice, and the pod in the API's JSON.
    """
    try:
        known = {(item.namespace, item.pod): item for item in endpoints(paths.state)}
    except ActuatorError:
        known = {}
    checks = []
    for name, pod in pods:
        meta = pod.get("metadata") or {}
        namespace, pod_name = str(meta.get("namespace")), str(meta.get("name"))
        annotations = meta.get("annotations") or {}
        checks.append(_entry(cluster, paths, known, name, namespace, pod_name, ANNOTATION in annotations))
        if networks := annotations.get(MULTUS):
            state = f"{networks} of {namespace}/{pod_name}: Cilium does not pace these"
            checks.append(
                checked(f"{name}: networks", False, state, "a slice that leaves by such a network is shaped in its pod")
            )
    return checks


def _entry(
    cluster: ClusterReader,
    paths: CiliumPaths,
    known: Mapping[tuple[str, str], Endpoint],
    name: str,
    namespace: str,
    pod: str,
    annotated: bool,
) -> Check:
    where = f"{namespace}/{pod}"
    number = known[namespace, pod].id if (namespace, pod) in known else _resource_id(cluster, namespace, pod)
    if number is None:
        return checked(f"{name}: rate", False, f"{where} is no endpoint of Cilium", "it is shaped in its pod")
    try:
        with contextlib.closing(ThrottleMap(paths.pin)) as throttle:
            entry = throttle.entry(number)
    except (ActuatorError, ValueError):
        return checked(f"{name}: rate", False, f"endpoint {number}, no map to look in", "it is shaped in its pod")
    if entry is not None:
        return checked(f"{name}: rate", True, f"endpoint {number}: {words(entry.bytes_per_s)}")
    hint = f"annotate the pod: {ANNOTATION}" if not annotated else "annotated: what does the agent's log say?"
    return checked(f"{name}: rate", False, f"endpoint {number} ({where}) has none", hint)


def _resource_id(cluster: ClusterReader, namespace: str, pod: str) -> int | None:
    """The endpoint's id from the CiliumEndpoint, which is reliable enough for a check."""
    endpoint = cluster.get(f"/apis/cilium.io/v2/namespaces/{namespace}/ciliumendpoints/{pod}").document or {}
    number = (endpoint.get("status") or {}).get("id")
    return number if type(number) is int else None


def _policies(cluster: ClusterReader) -> Check:
    """Egress policies with rules of layer 7: traffic through the proxy is not paced."""
    names, why = [], ""
    for path in POLICIES:
        answer = cluster.get(path)
        why = why or answer.why
        for item in answer.items:
            meta = item.get("metadata") or {}
            if any(_is_l7(spec) for spec in (item.get("spec"), *_list(item.get("specs")))):
                names.append("/".join(filter(None, (meta.get("namespace"), meta.get("name")))))
    if why:
        return checked("L7 egress policies", False, why, _RIGHTS)
    hint = "pods that they select are not paced: their slices are to be shaped in the pod (egress_by: shaper)"
    return checked("L7 egress policies", not names, ", ".join(sorted(names)) or "none", hint)


def _is_l7(spec: Any) -> bool:
    """Whether a rule set, of whatever form, has rules of layer 7."""
    rules = _list(_field(spec, "egress"))
    return any(_field(port, "rules") for rule in rules for port in _list(_field(rule, "toPorts")))


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _version(agent: Answer) -> str:
    """Cilium's version, from the image of its agents."""
    if agent.document is None:
        return f"version not known ({agent.why or 'no DaemonSet cilium'})"
    containers = (((agent.document.get("spec") or {}).get("template") or {}).get("spec") or {}).get("containers") or ()
    images = [str(item.get("image")) for item in containers if item.get("name") == "cilium-agent"]
    tag = images[0].partition("@")[0].rpartition(":")[2] if images else ""
    return tag if tag and "/" not in tag else "version not known"


def _on(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "").lower() == "true"


def _is_bpffs(path: Path) -> bool:
    """Whether a path is on a BPF file system: by f_type of statfs(2), which statvfs(3) lacks."""
    import ctypes

    buffer = ctypes.create_string_buffer(256)
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), buffer):
        return False
    return struct.unpack_from("@l", buffer)[0] & 0xFFFFFFFF == BPF_FS_MAGIC


_RIGHTS = "ask with a kubeconfig that may read ConfigMaps of kube-system and Cilium's policies"
