"""A SliceSet's own status: what its nodes say, summed up by whichever agent holds the Lease for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError, BackOff
from slicepilot.cluster.client.reflector import Reflector, Source
from slicepilot.cluster.resources.names import API_VERSION, NODE_SLICE_SETS, SLICE_SETS, SUMMARY, path

from .conditions import DEGRADED, READY, Condition, documents, now

WRITE_S, VITAL_S = 10.0, 1.0
NO_NODES = "NoNodes"
MOST_NAMED = 3


def summed(slice_set: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], list[Condition]]:
    """Sums of what nodes say of a SliceSet, without its conditions, and these.

    What a node has said of an earlier generation counts until it says something of the present one: its pods are there
    in any case. It is not ready then.
    """
    generation = slice_set["metadata"].get("generation", 1)
    told = sorted(nodes, key=lambda one: str(one["spec"]["node"]))
    statuses: list[tuple[str, Mapping[str, Any]]] = [(one["spec"]["node"], one.get("status") or {}) for one in told]
    slices = sum(len(status.get("slices") or ()) for _, status in statuses)
    kept = sum(int(status.get("keptSlices") or 0) for _, status in statuses)
    body = {"nodes": len(told), "slices": slices, "kept": f"{kept}/{slices}"}
    if not told:
        text = "no node that it is meant for has pods of it, or their agents do not run"
        return body, [Condition(READY, "False", NO_NODES, text), Condition(DEGRADED, "False", NO_NODES)]
    behind = [node for node, status in statuses if status.get("observedGeneration") != generation]
    unready = _which(statuses, READY, "False")
    degraded = _which(statuses, DEGRADED, "True")
    if behind:
        ready = Condition(READY, "False", "Behind", f"not taken up yet by {_named(behind)}")
    elif unready:
        ready = Condition(READY, "False", unready[0][1], _told(unready))
    else:
        ready = Condition(READY, "True", "LoopsRunning", f"on {len(told)} nodes" if len(told) > 1 else "on one node")
    if degraded:
        return body, [ready, Condition(DEGRADED, "True", degraded[0][1], _told(degraded))]
    return body, [ready, Condition(DEGRADED, "False", "AsDeclared")]


def _which(statuses: list[tuple[str, Mapping[str, Any]]], kind: str, status: str) -> list[tuple[str, str, str]]:
    """Nodes with a condition of this status: node, reason, message."""
    return [
        (node, one["reason"], one.get("message") or "")
        for node, told in statuses
        for one in told.get("conditions") or ()
        if (one["type"], one["status"]) == (kind, status)
    ]


def _told(found: list[tuple[str, str, str]]) -> str:
    more = f"; and {len(found) - MOST_NAMED} more nodes" if len(found) > MOST_NAMED else ""
    return "; ".join(f"{node}: {text}" for node, _, text in found[:MOST_NAMED]) + more


def _named(nodes: list[str]) -> str:
    return ", ".join(nodes[:MOST_NAMED]) + (f" and {len(nodes) - MOST_NAMED} more" if len(nodes) > MOST_NAMED else "")


@dataclass
class _Written:
    """What was written last of one SliceSet."""

    version: tuple[Any, ...] = ()
    vital: tuple[Any, ...] = ()
    at_s: float = -1e9
    again_s: float = 0.0
    back_off: BackOff = field(default_factory=BackOff)


class Summary:
    """Sums up while told to; watches the nodes' objects only then.

    Args:
        api: the server.
        slice_sets: that there are, as the API server has them.
        changed: called when a node has said something.
        failed: see `Reflector`.
    """

    def __init__(
        self,
        api: Api,
        slice_sets: Callable[[], list[dict[str, Any]]],
        changed: Callable[[], None],
        failed: Callable[[str, float], None],
    ) -> None:
        self._api, self._slice_sets, self._changed, self._failed = api, slice_sets, changed, failed
        self._nodes: Reflector | None = None
        self._written: dict[str, _Written] = {}

    def step(self, now_s: float, held: bool) -> None:
        """Write what is due, where the Lease is ours. Raises the first ApiError."""
        if not held:
            self.close()
            return
        if self._nodes is None:
            source = Source(path(NODE_SLICE_SETS), {})
            self._nodes = Reflector(self._api, source, self._changed, failed=self._failed)
            self._nodes.start()
        if not self._nodes.synced:
            return
        told: dict[str, list[dict[str, Any]]] = {}
        for one in self._nodes.objects():
            for owner in one["metadata"].get("ownerReferences") or ():
                told.setdefault(owner["uid"], []).append(one)
        first: ApiError | None = None
        there = self._slice_sets()
        for slice_set in there:
            try:
                self._write(slice_set, told.get(slice_set["metadata"]["uid"], []), now_s)
            except ApiError as error:
                first = first or error
        left = {one["metadata"]["uid"] for one in there}
        self._written = {uid: one for uid, one in self._written.items() if uid in left}
        if first is not None:
            raise first

    def close(self) -> None:
        """Watch no more."""
        if self._nodes is not None:
            self._nodes.close()
            self._nodes = None
            self._written = {}

    def _write(self, slice_set: dict[str, Any], nodes: list[dict[str, Any]], now_s: float) -> None:
        meta = slice_set["metadata"]
        written = self._written.setdefault(meta["uid"], _Written())
        body, conditions = summed(slice_set, nodes)
        generation = meta.get("generation", 1)
        vital = (generation, body["nodes"], body["slices"], tuple(one.state for one in conditions))
        version = (*vital, body["kept"], tuple(one.message for one in conditions))
        since_s = VITAL_S if vital != written.vital else WRITE_S
        if version == written.version or now_s < max(written.at_s + since_s, written.again_s):
            return
        before = (slice_set.get("status") or {}).get("conditions") or ()
        status = {
            "observedGeneration": generation,
            **body,
            "conditions": documents(conditions, before, generation, now()),
        }
        document = {
            "apiVersion": API_VERSION,
            "kind": "SliceSet",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
            "status": status,
        }
        try:
            self._api.apply(path(SLICE_SETS, meta["namespace"], meta["name"], status=True), document, SUMMARY)
        except ApiError as error:
            if error.status == 404:  # deleted meanwhile
                return
            written.again_s = now_s + written.back_off.failed(error)
            raise
        written.back_off.succeeded()
        written.version, written.vital, written.at_s = version, vital, now_s
