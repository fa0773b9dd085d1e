"""Put an installation's objects there, and wait until its agents run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError
from slicepilot.configs import FailureError

from .manifests import DEFINITION
from .objects import APP, MANAGER, STEP_S, listed, path_of, title

ESTABLISHED_S = 30.0


def install(
    api: Api,
    documents: Iterable[Mapping[str, Any]],
    told: Callable[[str], None],
    *,
    force: bool = False,
    dry_run: bool = False,
) -> Mapping[str, Any] | None:
    """Apply them in order; resource definitions are waited for.

    Args:
        api: the API server, as somebody who may.
        documents: definitions and `manifests`.
        told: gets a line for each.
        force: take fields that another manager has, as helm or kubectl.
        dry_run: have all of them checked by the server, and none stored.

    Returns:
        the DaemonSet as the server has it, where it is among them.

    Raises:
        FailureError: what the server refuses.
    """
    daemons: Mapping[str, Any] | None = None
    for document in documents:
        try:
            made = api.apply(path_of(document), document, MANAGER, force=force, dry_run=dry_run)
            if document["kind"] == DEFINITION and not dry_run:
                _established(api, document)
        except ApiError as error:
            hint = "; --force takes it over" if error.status == 409 else ""
            raise FailureError(f"{title(document)}: {error}{hint}") from error
        told(f"{title(document)} {'checked' if dry_run else 'applied'}")
        if document["kind"] == "DaemonSet":
            daemons = made
    return daemons


def rolled_out(api: Api, daemons: Mapping[str, Any], seconds: float, told: Callable[[str], None]) -> int:
    """Wait until all nodes have the DaemonSet's newest pods and these are ready; returns how many nodes.

    Raises:
        FailureError: not in time; with what the first pod waits for.
    """
    deadline_s, last = time.monotonic() + seconds, ""
    while True:
        try:
            found = api.get(path_of(daemons))
        except ApiError as error:
            if time.monotonic() > deadline_s:
                raise FailureError(f"{title(daemons)}: {error}") from error
            time.sleep(STEP_S)
            continue
        status = found.get("status") or {}
        wanted = int(status.get("desiredNumberScheduled", 0))
        newest, available = (int(status.get(key, 0)) for key in ("updatedNumberScheduled", "numberAvailable"))
        seen = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
        line = f"{min(newest, available)} of {wanted} nodes have a ready agent"
        if seen and line != last:
            told(line)
            last = line
        if seen and newest == available == wanted and not status.get("numberUnavailable"):
            return wanted
        if time.monotonic() > deadline_s:
            raise FailureError(f"{title(daemons)}: {line} after {seconds:g} s{_why(api, found)}")
        time.sleep(STEP_S)


def agent_pods(api: Api, namespace: str) -> list[dict[str, Any]]:
    """Pods of agents; raises ApiError."""
    return listed(api, f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": APP})


def pod_trouble(pod: Mapping[str, Any]) -> str:
    """Why a pod is not ready, in a line; empty where nothing is known."""
    status = pod.get("status") or {}
    for one in status.get("containerStatuses") or ():
        for state in ("waiting", "terminated"):
            told = (one.get("state") or {}).get(state)
            if told is not None:
                return ": ".join(filter(None, [told.get("reason"), " ".join(str(told.get("message", "")).split())]))
    for one in status.get("conditions") or ():
        if one["status"] == "False" and one.get("message"):
            return f"{one.get('reason', one['type'])}: {one['message']}"
    return ""


def _established(api: Api, document: Mapping[str, Any]) -> None:
    deadline_s = time.monotonic() + ESTABLISHED_S
    while True:
        conditions = (api.get(path_of(document)).get("status") or {}).get("conditions") or ()
        if any((one["type"], one["status"]) == ("Established", "True") for one in conditions):
            return
        if time.monotonic() > deadline_s:
            raise FailureError(f"{title(document)}: not established after {ESTABLISHED_S:g} s")
        time.sleep(STEP_S)


def _why(api: Api, daemons: Mapping[str, Any]) -> str:
    """What holds a pod up, or why there is none: a namespace that does not let such pods in, for instance."""
    namespace = daemons["metadata"]["namespace"]
    try:
        pods = agent_pods(api, namespace)
        told = [f"{one['metadata']['name']}: {trouble}" for one in pods if (trouble := pod_trouble(one))]
        if not pods:
            query = {"fieldSelector": f"reason=FailedCreate,involvedObject.name={daemons['metadata']['name']}"}
            events = api.get(f"/api/v1/namespaces/{namespace}/events", query).get("items") or ()
            told = [str(one.get("message", "")) for one in events]
    except ApiError:
        return ""
    return f"; {told[0][:400]}" if told else ""
