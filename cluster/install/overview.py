"""What there is of an installation: agents by node, SliceSets, and what is not as it should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.resources.names import NODE_SLICE_SETS, SLICE_SETS, path

from .apply import agent_pods, pod_trouble
from .objects import listed

HIGHEST = "--highest-mode="


def overview(api: Api, namespace: str) -> dict[str, Any]:
    """As `slicepilot k8s status --json` prints it.

    Raises:
        ApiError: the server does not answer, or refuses.
    """
    return {
        "namespace": namespace,
        "agents": [_agent(one) for one in _sorted(agent_pods(api, namespace))],
        "slice_sets": [_slice_set(one) for one in _sorted(listed(api, path(SLICE_SETS)))],
        "nodes": [_node(one) for one in _sorted(listed(api, path(NODE_SLICE_SETS)))],
    }


def _agent(pod: Mapping[str, Any]) -> dict[str, Any]:
    status, spec = pod.get("status") or {}, pod["spec"]
    ready = any((one["type"], one["status"]) == ("Ready", "True") for one in status.get("conditions") or ())
    containers = [one for one in spec["containers"] if one["name"] == "agent"]
    arguments = [argument for one in containers for argument in one.get("args") or ()]
    highest = [one.removeprefix(HIGHEST) for one in arguments if one.startswith(HIGHEST)]
    return {
        "node": spec.get("nodeName"),
        "pod": pod["metadata"]["name"],
        "ready": ready,
        "highest_mode": highest[-1] if highest else "shadow",
        "image": next((one["image"] for one in containers), None),
        "restarts": sum(int(one.get("restartCount", 0)) for one in status.get("containerStatuses") or ()),
        "trouble": "" if ready else pod_trouble(pod),
    }


def _slice_set(one: Mapping[str, Any]) -> dict[str, Any]:
    status, meta = one.get("status") or {}, one["metadata"]
    return {
        "namespace": meta["namespace"],
        "name": meta["name"],
        "mode": one["spec"].get("mode", "shadow"),
        "nodes": int(status.get("nodes") or 0),
        "slices": int(status.get("slices") or 0),
        "kept": status.get("kept"),
        "conditions": _conditions(status),
    }


def _node(one: Mapping[str, Any]) -> dict[str, Any]:
    status, spec = one.get("status") or {}, one["spec"]
    return {
        "namespace": one["metadata"]["namespace"],
        "slice_set": spec.get("sliceSet"),
        "node": spec.get("node"),
        "mode": status.get("mode"),
        "agent": status.get("agent"),
        "kept": status.get("kept"),
        "conditions": _conditions(status),
        "slices": [
            {"name": each["name"], "pod": each.get("pod"), "kept": each.get("promiseKept"), "p99_ms": each.get("p99Ms")}
            for each in status.get("slices") or ()
        ],
    }


def _conditions(status: Mapping[str, Any]) -> list[dict[str, str]]:
    keys = ("type", "status", "reason", "message")
    return [{key: str(each.get(key) or "") for key in keys} for each in status.get("conditions") or ()]


def _sorted(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda one: (one["metadata"].get("namespace", ""), one["metadata"]["name"]))
