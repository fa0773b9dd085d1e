"""Events: an Event for each transition of a condition, none for a state that lasts.

https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
"""

from __future__ import annotations

import collections
import datetime
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError, BackOff
from slicepilot.cluster.resources.names import API_VERSION, CONTROLLER
from slicepilot.cluster.resources.slice_set import Identity

from .conditions import DEGRADED, READY, Condition

MOST_QUEUED = 100
MOST_NOTE, MOST_INSTANCE = 1024, 128
QUIET = {"LoopStarting", "Fetching", "AsDeclared"}
"""Reasons without an Event."""


def transitions(conditions: Iterable[Condition], before: Iterable[Mapping[str, Any]]) -> list[Condition]:
    """Conditions whose status or reason has changed."""
    known = {(old["type"], old["status"], old["reason"]) for old in before}
    return [item for item in conditions if item.state not in known and item.reason not in QUIET]


class Events:
    """A queue of Events; when it is full, the oldest are dropped.

    Args:
        api: the server.
        node: name of the agent's node.
    """

    def __init__(self, api: Api, node: str) -> None:
        self._api, self._node = api, node
        self._queue: collections.deque[tuple[str, dict[str, Any]]] = collections.deque(maxlen=MOST_QUEUED)
        self._back_off, self._again_s = BackOff(1.0, 60.0), 0.0

    def add(self, identity: Identity, condition: Condition) -> None:
        bad = (condition.status == "True") is (condition.type == DEGRADED) or (
            condition.type == READY and condition.status != "True"
        )
        note = f"{self._node}: {condition.type} is {condition.status}: {' '.join(condition.message.split())}"
        document = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{identity.name}.{uuid.uuid4().hex[:16]}", "namespace": identity.namespace},
            "eventTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER,
            "reportingInstance": self._node[:MOST_INSTANCE],
            "action": condition.type,
            "reason": condition.reason,
            "type": "Warning" if bad else "Normal",
            "note": note[:MOST_NOTE],
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": "SliceSet",
                "name": identity.name,
                "namespace": identity.namespace,
                "uid": identity.uid,
            },
        }
        self._queue.append((f"/apis/events.k8s.io/v1/namespaces/{identity.namespace}/events", document))

    def step(self, now_s: float) -> None:
        """Send the queue. Raises ApiError; Events that the server refuses for good are dropped."""
        while self._queue and now_s >= self._again_s:
            path, document = self._queue[0]
            try:
                self._api.create(path, document)
            except ApiError as error:
                if error.status in {400, 403, 404, 409, 422}:
                    self._queue.popleft()
                else:
                    self._again_s = now_s + self._back_off.failed(error)
                raise
            self._queue.popleft()
            self._back_off.succeeded()
