"""Writes an agent's own objects, one per SliceSet that has pods on its node: at once what is vital, figures seldom."""

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
"""At once, until it is somebody else's turn: the Lease is renewed by the same thread."""
VITAL_S, KEPT_S, FIGURES_S = 1.0, 10.0, 30.0
"""From one write of an object to the next: of what is vital, of a promise that is broken or kept again, of figures.
The last is for each object that a node has: so a node asks for less than one request in ten seconds."""


@dataclass
class _Object:
    """One SliceSet's, as it should be and as it was written."""

    who: Identity
    report: Report
    made: bool = False
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
class _Leaving:
    """What is to be removed, of a SliceSet that has no pods here any more."""

    who: Identity
    back_off: BackOff = field(default_factory=BackOff)
    again_s: float = 0.0


class Writer:
    """`post` from the main thread, `step` from the one that may wait for the API server.

    Args:
        api: the server.
        node: whose agent it is.
        events: told of transitions.
    """

    def __init__(self, api: Api, node: str, events: Events) -> None:
        self._api, self._node, self._events = api, node, events
        self._objects: dict[str, _Object] = {}
        self._leaving: dict[str, _Leaving] = {}
        self._lock = threading.Lock()
        self._adopted = False
        self._adopt_again_s, self._back_off = 0.0, BackOff()

    def post(self, reports: Mapping[str, tuple[Identity, Report]]) -> None:
        """What there is to say of each SliceSet, by its uid. Objects of those that are not named are removed."""
        with self._lock:
            for uid in [*self._objects]:
                if uid not in reports:
                    gone = self._objects.pop(uid)
                    self._leaving[uid] = _Leaving(gone.who)
            for uid, (who, report) in reports.items():
                self._leaving.pop(uid, None)
                known = self._objects.get(uid)
                if known is None:
                    self._objects[uid] = _Object(who, report)
                else:
                    known.who, known.report = who, report

    def step(self, now_s: float) -> None:
        """Write what is due, for `STEP_S` and a request at most; what has waited longest comes first.

        Raises the first ApiError; the rest is tried nevertheless, and all of it again later.
        """
        if not self._adopted:  # conditions are as old as they were
            if now_s < self._adopt_again_s:
                return
            try:
                self._adopt()
            except ApiError as error:
                self._adopt_again_s = now_s + self._back_off.failed(error)
                raise
        with self._lock:
            # One of its name may have come since: what is to go is that one's now.
            here = {(one.who.namespace, one.who.name) for one in self._objects.values()}
            for uid in [*self._leaving]:
                if (self._leaving[uid].who.namespace, self._leaving[uid].who.name) in here:
                    del self._leaving[uid]
            objects, leaving = [*self._objects.values()], [*self._leaving.items()]
        calls: list[Callable[[], None]] = [
            partial(self._delete, uid, one, now_s) for uid, one in leaving if now_s >= one.again_s
        ]
        due = sorted((one for one in objects if one.due(now_s, len(objects))), key=lambda one: one.written_s)
        calls += [partial(self._write, one, now_s) for one in due]
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

    def _delete(self, uid: str, one: _Leaving, now_s: float) -> None:
        name = node_slice_set(one.who.name, self._node)
        try:
            self._api.delete(path(NODE_SLICE_SETS, one.who.namespace, name))
        except ApiError as error:
            one.again_s = now_s + one.back_off.failed(error)
            raise
        with self._lock:
            self._leaving.pop(uid, None)

    def _adopt(self) -> None:
        """What an agent of this node has left: conditions go on being as old as they are, and what is nobody's goes."""
        query = {"labelSelector": f"{NODE_LABEL}={node_label(self._node)}"}
        found = self._api.get(path(NODE_SLICE_SETS), query)
        with self._lock:
            for document in found.get("items") or ():
                if document["spec"]["node"] != self._node:
                    continue
                meta = document["metadata"]
                [uid] = [one["uid"] for one in meta.get("ownerReferences") or ()][:1] or [meta["uid"]]
                known = self._objects.get(uid)
                if known is not None:
                    known.conditions = list((document.get("status") or {}).get("conditions") or ())
                else:
                    self._leaving[uid] = _Leaving(Identity(document["spec"]["sliceSet"], meta["namespace"], uid, 0))
        self._adopted = True

    def _write(self, one: _Object, now_s: float) -> None:
        try:
            self._apply(one, now_s)
        except ApiError as error:
            one.again_s = now_s + one.back_off.failed(error)
            raise
        one.back_off.succeeded()

    def _apply(self, one: _Object, now_s: float) -> None:
        who, report = one.who, one.report
        name, by = node_slice_set(who.name, self._node), manager(self._node)
        meta: dict[str, Any] = {"name": name, "namespace": who.namespace}
        head = {"apiVersion": API_VERSION, "kind": "NodeSliceSet", "metadata": meta}
        if not one.made:
            owner = {"apiVersion": API_VERSION, "kind": "SliceSet", "name": who.name, "uid": who.uid}
            more = {"labels": {NODE_LABEL: node_label(self._node)}, "ownerReferences": [owner]}
            spec = {"node": self._node, "sliceSet": who.name}
            whole = {**head, "metadata": {**meta, **more}, "spec": spec}
            self._api.apply(path(NODE_SLICE_SETS, who.namespace, name), whole, by)
            one.made = True
        conditions = documents(report.conditions, one.conditions, who.generation, now())
        status = {"observedGeneration": who.generation, **report.body, "conditions": conditions}
        try:
            self._api.apply(path(NODE_SLICE_SETS, who.namespace, name, status=True), {**head, "status": status}, by)
        except ApiError as error:
            if error.status == 404:  # somebody has removed it
                one.made = False
            raise
        for condition in transitions(report.conditions, one.conditions):
            self._events.tell(who, condition)
        one.conditions, one.written, one.written_s = conditions, report, now_s
