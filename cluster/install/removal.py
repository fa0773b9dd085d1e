"""Take an installation away: what is declared first, so that knobs are as they were found, then who acts on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError
from slicepilot.cluster.resources.names import NODE_SLICE_SETS, SLICE_SETS, path
from slicepilot.configs import FailureError

from .apply import agent_pods
from .manifests import DEFINITION
from .objects import STEP_S, listed, path_of, title

RIGHTS = "rbac.authorization.k8s.io/v1"
CONFIG_MAPS = "slicepilot-agent-config-maps"
"""Role and binding in each namespace in which agents may read ConfigMaps."""


def declared_sets(api: Api) -> list[dict[str, Any]]:
    """All SliceSets of the cluster; none where the resource is not known. Raises ApiError."""
    return listed(api, path(SLICE_SETS))


def remove(
    api: Api,
    documents: Iterable[Mapping[str, Any]],
    namespace: str,
    told: Callable[[str], None],
    *,
    slice_sets: bool = True,
    with_crds: bool = False,
    seconds: float = 120.0,
) -> None:
    """Delete what `install` has applied, the namespace aside.

    Agents end a loop when its SliceSet is gone, and all loops when they end themselves; a pod of an agent is gone when
    its loops have given back what they had. So whoever returns from here finds knobs as they were found.

    Args:
        api: the API server, as somebody who may.
        documents: definitions and `manifests`.
        namespace: of the agents.
        told: gets a line for each step.
        slice_sets: whether SliceSets are deleted; they are in any case with their definition.
        with_crds: whether the definitions are, with all objects that there are of them.
        seconds: for each of the waits.

    Raises:
        FailureError: what the server refuses, or what is still there after that time.
    """
    try:
        if slice_sets or with_crds:
            for one in declared_sets(api):
                meta = one["metadata"]
                api.delete(path(SLICE_SETS, meta["namespace"], meta["name"]))
                told(f"SliceSet {meta['namespace']}/{meta['name']} deleted")
            _gone("NodeSliceSets", lambda: listed(api, path(NODE_SLICE_SETS)), seconds)
        for document in reversed(list(documents)):
            if document["kind"] == "Namespace" or (document["kind"] == DEFINITION and not with_crds):
                continue
            api.delete(path_of(document))
            told(f"{title(document)} deleted")
            if document["kind"] == "DaemonSet":
                _gone("agents' pods", lambda: agent_pods(api, namespace), seconds)
                told("the agents have ended: knobs are as they were found")
        for lease in listed(api, f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"):
            if lease["metadata"]["name"].startswith("slicepilot-"):
                api.delete(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{lease['metadata']['name']}")
    except ApiError as error:
        raise FailureError(str(error)) from error


def withdraw(api: Api, documents: Iterable[Mapping[str, Any]], told: Callable[[str], None]) -> None:
    """Take away rights in namespaces that an earlier installation has given and these documents do not.

    Raises:
        FailureError: what the server refuses.
    """
    kept = {path_of(one) for one in documents}
    try:
        for kind in ("RoleBinding", "Role"):
            query = {"labelSelector": "app.kubernetes.io/name=slicepilot"}
            for one in listed(api, f"/apis/{RIGHTS}/{kind.lower()}s", query):
                meta = {key: one["metadata"][key] for key in ("name", "namespace")}
                document = {"apiVersion": RIGHTS, "kind": kind, "metadata": meta}
                if meta["name"] == CONFIG_MAPS and path_of(document) not in kept:
                    api.delete(path_of(document))
                    told(f"{title(document)} of namespace {meta['namespace']} deleted")
    except ApiError as error:
        raise FailureError(str(error)) from error


def _gone(what: str, look: Callable[[], list[dict[str, Any]]], seconds: float) -> None:
    deadline_s = time.monotonic() + seconds
    while left := look():
        if time.monotonic() > deadline_s:
            names = ", ".join(one["metadata"]["name"] for one in left[:3])
            raise FailureError(f"{what} are still there after {seconds:g} s: {names}")
        time.sleep(STEP_S)
