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
    """The sums of a SliceSet's NodeSliceSets, and its conditions.

    The status of an earlier generation counts until the node reports on the present generation: its pods are there in
    any case. The SliceSet is not ready then.
    """
    generation = slice_set["metadata"].get("generation", 1)
    statuses: list[tuple[str, Mapping[str, Any]]] = sorted(
        ((str(item["spec"]["node"]), item.get("status") or {}) for item in nodes), key=lambda pair: pair[0]
    )
    slices = sum(len(status.get("slices") or ()) for _, status in statuses)
    kept = sum(int(status.get("keptSlices") or 0) for _, status in statuses)
    body = {"nodes": len(statuses), "slices": slices, "kept": f"{kept}/{slices}"}
    if not statuses:
        text = "none of its nodes has pods of it, or their agents do not run"
        return body, [Condition(READY, "False", NO_NODES, text), Condition(DEGRADED, "False", NO_NODES)]
    behind = [node for node, status in statuses if status.get("observedGeneration") != generation]
    unready = _with_condition(statuses, READY, "False")
    degraded = _with_condition(statuses, DEGRADED, "True")
    if behind:
        ready = Condition(READY, "False", "Behind", f"not taken up yet by {_joined(behind, ', ')}")
    elif unready:
        ready = Condition(READY, "False", *unready[0])
    else:
        ready = Condition(
            READY, "True", "LoopsRunning", f"on {len(statuses)} nodes" if len(statuses) > 1 else "on one node"
        )
    if degraded:
        return body, [ready, Condition(DEGRADED, "True", *degraded[0])]
    return body, [ready, Condition(DEGRADED, "False", "AsDeclared")]


def _with_condition(statuses: list[tuple[str, Mapping[str, Any]]], kind: str, value: str) -> list[tuple[str, str]]:
    """Nothing, or one reason and message for all nodes with a condition of this status."""
    result = [
        (item["reason"], f"{node}: {item.get('message') or ''}")
        for node, status in statuses
        for item in status.get("conditions") or ()
        if (item["type"], item["status"]) == (kind, value)
    ]
    return [(result[0][0], _joined([text for _, text in result], "; "))] if result else []


def _joined(texts: list[str], separator: str) -> str:
    more = f"{separator}and {len(texts) - MOST_NAMED} more nodes" if len(texts) > MOST_NAMED else ""
    return separator.join(texts[:MOST_NAMED]) + more


@dataclass
class _Written:
    """The status of a SliceSet that was written last."""

    version: tuple[Any, ...] = ()
    vital: tuple[Any, ...] = ()
    at_s: float = -1e9
    again_s: float = 0.0
    back_off: BackOff = field(default_factory=BackOff)


class Summary:
    """Sums up while the summary's Lease is held, and watches NodeSliceSets only then.

    Args:
        api: the server.
        slice_sets: returns all SliceSets, in the API's JSON.
        changed: called when a NodeSliceSet has changed.
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
        """Write what is due, if the Lease is held. Raises the first ApiError."""
        if not held:
            self.close()
            return
        if self._nodes is None:
            source = Source(path(NODE_SLICE_SETS), {})
            self._nodes = Reflector(self._api, source, self._changed, failed=self._failed)
            self._nodes.start()
        if not self._nodes.synced:
            return
        nodes: dict[str, list[dict[str, Any]]] = {}
        for item in self._nodes.objects():
            for owner in item["metadata"].get("ownerReferences") or ():
                nodes.setdefault(owner["uid"], []).append(item)
        first: ApiError | None = None
        slice_sets = {item["metadata"]["uid"]: item for item in self._slice_sets()}
        for uid, slice_set in slice_sets.items():
            try:
                self._write(slice_set, nodes.get(uid, []), now_s)
            except ApiError as error:
                first = first or error
        self._written = {uid: written for uid, written in self._written.items() if uid in slice_sets}
        if first is not None:
            raise first

    def close(self) -> None:
        if self._nodes is not None:
            self._nodes.close()
            self._nodes = None
            self._written = {}

    def _write(self, slice_set: dict[str, Any], nodes: list[dict[str, Any]], now_s: float) -> None:
        meta = slice_set["metadata"]
        written = self._written.setdefault(meta["uid"], _Written())
        body, conditions = summed(slice_set, nodes)
        generation = meta.get("generation", 1)
        vital = (generation, body["nodes"], body["slices"], tuple(item.state for item in conditions))
        version = (*vital, body["kept"], tuple(item.message for item in conditions))
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
            if error.status == 404:  # deleted in the meantime
                return
            written.again_s = now_s + written.back_off.failed(error)
            raise
        written.back_off.succeeded()
        written.version, written.vital, written.at_s = version, vital, now_s
