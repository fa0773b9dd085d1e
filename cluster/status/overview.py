"""The state of an installation for `slicepilot k8s status`: agents by node, SliceSets, and their conditions."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError
from slicepilot.cluster.resources.names import NODE_SLICE_SETS, SLICE_SETS, path

HIGHEST = "--highest-mode="
AGENT_PODS = {"labelSelector": "app.kubernetes.io/name=slicepilot"}
RETRY_S, PATIENCE_S = 0.5, 20.0


def operator_api(kubeconfig: Path | None) -> Api:
    """The API as the person at the terminal: by the given file, else by KUBECONFIG, else by ``~/.kube/config``.

    Raises:
        ConfigError: there is no such file, or it cannot be used.
    """
    return Api(kubeconfig or Path(os.environ.get("KUBECONFIG") or Path("~/.kube/config").expanduser()))


def overview(api: Api, namespace: str) -> dict[str, Any]:
    """The document that `slicepilot k8s status --json` prints.

    Raises:
        ApiError: the server does not answer, or refuses.
    """
    return {
        "namespace": namespace,
        "agents": list(map(_agent, _listed(api, f"/api/v1/namespaces/{namespace}/pods", AGENT_PODS))),
        "slice_sets": list(map(_slice_set, _listed(api, path(SLICE_SETS)))),
        "nodes": list(map(_node, _listed(api, path(NODE_SLICE_SETS)))),
    }


def _agent(pod: Mapping[str, Any]) -> dict[str, Any]:
    status, spec = pod.get("status") or {}, pod["spec"]
    ready = any((entry["type"], entry["status"]) == ("Ready", "True") for entry in status.get("conditions") or ())
    containers = [entry for entry in spec["containers"] if entry["name"] == "agent"]
    arguments = [argument for entry in containers for argument in entry.get("args") or ()]
    highest = [entry.removeprefix(HIGHEST) for entry in arguments if entry.startswith(HIGHEST)]
    return {
        "node": spec.get("nodeName"),
        "pod": pod["metadata"]["name"],
        "ready": ready,
        "highest_mode": highest[-1] if highest else "shadow",
        "image": next((entry["image"] for entry in containers), None),
        "restarts": sum(int(entry.get("restartCount", 0)) for entry in status.get("containerStatuses") or ()),
        "trouble": "" if ready else _pod_trouble(pod),
    }


def _slice_set(entry: Mapping[str, Any]) -> dict[str, Any]:
    status, meta = entry.get("status") or {}, entry["metadata"]
    return {
        "namespace": meta["namespace"],
        "name": meta["name"],
        "mode": entry["spec"].get("mode", "shadow"),
        "nodes": int(status.get("nodes") or 0),
        "slices": int(status.get("slices") or 0),
        "kept": status.get("kept"),
        "conditions": _conditions(status),
    }


def _node(entry: Mapping[str, Any]) -> dict[str, Any]:
    status, spec = entry.get("status") or {}, entry["spec"]
    return {
        "namespace": entry["metadata"]["namespace"],
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


def _listed(api: Api, where: str, query: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Objects of a kind by namespace and name; none where the server does not know the kind.

    A server that is not ready for a kind yet (429 just after its definition was made; 503) gets the request again for a
    while."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            items = list(api.get(where, query).get("items") or ())
            return sorted(items, key=lambda item: (item["metadata"].get("namespace", ""), item["metadata"]["name"]))
        except ApiError as error:
            if error.status == 404:
                return []
            if error.status not in {429, 503} or time.monotonic() > deadline_s:
                raise
            time.sleep(max(RETRY_S, min(error.retry_after_s or 0.0, PATIENCE_S / 4.0)))


def _pod_trouble(pod: Mapping[str, Any]) -> str:
    """Why a pod is not ready, in a line; empty where the API does not say."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        for state in ("waiting", "terminated"):
            reported = (container.get("state") or {}).get(state)
            if reported is not None:
                message = " ".join(str(reported.get("message", "")).split())
                return ": ".join(filter(None, [reported.get("reason"), message]))
    for condition in status.get("conditions") or ():
        if condition["status"] == "False" and condition.get("message"):
            return f"{condition.get('reason', condition['type'])}: {condition['message']}"
    return ""
