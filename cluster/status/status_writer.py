"""Writes the agent's NodeSliceSets, one per SliceSet with pods on its node: vital changes at once, figures seldom."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError, BackOff
from slicepilot.cluster.resources.names import (
    API_VERSION,
    NODE_LABEL,
    NODE_SLICE_SETS,
    manager,
    node_label,
    node_slice_set,
    path,
)
from slicepilot.cluster.resources.slice_set import Identity

from .conditions import documents, now
from .events import Events, transitions
from .report import Report

STEP_S = 1.0
"""Longest time of a step: the same thread renews the Lease."""
VITAL_S, KEPT_S, FIGURES_S = 1.0, 10.0, 30.0
"""Least time between two writes of an object: after a vital change, after a promise was broken or kept again, and for
figures. The last is multiplied by the node's objects, so that a node sends less than one request in ten seconds."""


@dataclass
class _Object:
    """The NodeSliceSet of a SliceSet: the wanted report and the report that was written last."""

    identity: Identity
    report: Report
    created: bool = False
    written: Report | None = None
    written_s: float = -1e9
    conditions: list[dict[str, Any]] = field(default_factory=list)
    back_off: BackOff = field(default_factory=BackOff)
    again_s: float = 0.0

    def due(self, now_s: float, objects: int) -> bool:
        """Whether it is to be written now."""
        if now_s < self.again_s:
            return False
        if self.written is None:
            return True
        since_s, before = now_s - self.written_s, self.written
        if before.vital != self.report.vital:
            return since_s >= VITAL_S
        if before.body.get("keptSlices") != self.report.body.get("keptSlices"):
            return since_s >= KEPT_S
        return before.body != self.report.body and since_s >= FIGURES_S * objects


@dataclass
class _Removal:
    """The NodeSliceSet of a SliceSet that has no pods here any more."""

    identity: Identity
    back_off: BackOff = field(default_factory=BackOff)
    again_s: float = 0.0


class StatusWriter:
    """`post` from the main thread, `step` from the thread that may wait for the API server.

    Args:
        api: the server.
        node: name of the agent's node.
        events: gets the transitions of conditions.
    """

    def __init__(self, api: Api, node: str, events: Events) -> None:
        self._api, self._node, self._events = api, node, events
        self._objects: dict[str, _Object] = {}
        self._removals: dict[str, _Removal] = {}
        self._lock = threading.Lock()
        self._posted = self._adopted = False
        self._adopt_again_s, self._back_off = 0.0, BackOff()

    def post(self, reports: Mapping[str, tuple[Identity, Report]]) -> None:
        """Set the reports on all SliceSets by uid. Objects of SliceSets that are not among them are removed."""
        with self._lock:
            self._posted = True
            for uid in self._objects.keys() - reports.keys():
                self._removals[uid] = _Removal(self._objects.pop(uid).identity)
            for uid, (identity, report) in reports.items():
                self._removals.pop(uid, None)
                item = self._objects.setdefault(uid, _Object(identity, report))
                item.identity, item.report = identity, report

    def step(self, now_s: float) -> None:
        """Write what is due, the longest due first, for `STEP_S` and a request at most; nothing before the first
        `post`, since objects of an earlier agent would be taken for orphans.

        Raises the first ApiError, after the rest was tried; all of it is tried again later.
        """
        if not self._posted:
            return
        if not self._adopted:
            if now_s < self._adopt_again_s:
                return
            try:
                self._adopt()
            except ApiError as error:
                self._adopt_again_s = now_s + self._back_off.failed(error)
                raise
        with self._lock:
            # A SliceSet of the same name may have been created since: the object is its own now.
            here = {(item.identity.namespace, item.identity.name) for item in self._objects.values()}
            self._removals = {
                uid: item
                for uid, item in self._removals.items()
                if (item.identity.namespace, item.identity.name) not in here
            }
            objects, removals = [*self._objects.values()], [*self._removals.items()]
        calls: list[Callable[[], None]] = [
            partial(self._delete, uid, item, now_s) for uid, item in removals if now_s >= item.again_s
        ]
        due = sorted((item for item in objects if item.due(now_s, len(objects))), key=lambda item: item.written_s)
        calls += [partial(self._write, item, now_s) for item in due]
        first: ApiError | None = None
        until_s = time.monotonic() + STEP_S
        for call in calls:
            try:
                call()
            except ApiError as error:
                first = first or error
            if time.monotonic() > until_s:
                break
        if first is not None:
            raise first

    def _delete(self, uid: str, item: _Removal, now_s: float) -> None:
        name = node_slice_set(item.identity.name, self._node)
        try:
            self._api.delete(path(NODE_SLICE_SETS, item.identity.namespace, name))
        except ApiError as error:
            item.again_s = now_s + item.back_off.failed(error)
            raise
        with self._lock:
            self._removals.pop(uid, None)

    def _adopt(self) -> None:
        """Take over the objects of an earlier agent of this node: transition times stay, orphans are removed."""
        query = {"labelSelector": f"{NODE_LABEL}={node_label(self._node)}"}
        items = self._api.get(path(NODE_SLICE_SETS), query).get("items") or ()
        with self._lock:
            for document in items:
                if document["spec"]["node"] != self._node:
                    continue
                meta = document["metadata"]
                [uid] = [owner["uid"] for owner in meta.get("ownerReferences") or ()][:1] or [meta["uid"]]
                if uid in self._objects:
                    self._objects[uid].conditions = list((document.get("status") or {}).get("conditions") or ())
                else:
                    self._removals[uid] = _Removal(Identity(document["spec"]["sliceSet"], meta["namespace"], uid, 0))
        self._adopted = True

    def _write(self, item: _Object, now_s: float) -> None:
        try:
            self._apply(item, now_s)
        except ApiError as error:
            item.again_s = now_s + item.back_off.failed(error)
            raise
        item.back_off.succeeded()

    def _apply(self, item: _Object, now_s: float) -> None:
        identity, report = item.identity, item.report
        name, by = node_slice_set(identity.name, self._node), manager(self._node)
        meta: dict[str, Any] = {"name": name, "namespace": identity.namespace}
        head = {"apiVersion": API_VERSION, "kind": "NodeSliceSet", "metadata": meta}
        if not item.created:
            owner = {"apiVersion": API_VERSION, "kind": "SliceSet", "name": identity.name, "uid": identity.uid}
            more = {"labels": {NODE_LABEL: node_label(self._node)}, "ownerReferences": [owner]}
            spec = {"node": self._node, "sliceSet": identity.name}
            whole = {**head, "metadata": {**meta, **more}, "spec": spec}
            self._api.apply(path(NODE_SLICE_SETS, identity.namespace, name), whole, by)
            item.created = True
        conditions = documents(report.conditions, item.conditions, identity.generation, now())
        status = {"observedGeneration": identity.generation, **report.body, "conditions": conditions}
        where = path(NODE_SLICE_SETS, identity.namespace, name, status=True)
        try:
            self._api.apply(where, {**head, "status": status}, by)
        except ApiError as error:
            if error.status == 404:  # somebody has deleted it
                item.created = False
            raise
        for condition in transitions(report.conditions, item.conditions):
            self._events.add(identity, condition)
        item.conditions, item.written, item.written_s = conditions, report, now_s
