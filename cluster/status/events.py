"""Events: one for each transition of a condition, never for what merely goes on.

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

MOST_WAITING = 100
MOST_NOTE, MOST_INSTANCE = 1024, 128
QUIET = {"LoopStarting", "Fetching", "AsDeclared"}
"""Reasons that are no news by themselves."""


def transitions(conditions: Iterable[Condition], before: Iterable[Mapping[str, Any]]) -> list[Condition]:
    """Those whose status or reason is another one than before."""
    known = {(one["type"], one["status"], one["reason"]) for one in before}
    return [one for one in conditions if one.state not in known and one.reason not in QUIET]


class Events:
    """Waits for its turn; what is too much is dropped, the oldest first.

    Args:
        api: the server.
        node: whose agent says it.
    """

    def __init__(self, api: Api, node: str) -> None:
        self._api, self._node = api, node
        self._waiting: collections.deque[tuple[str, dict[str, Any]]] = collections.deque(maxlen=MOST_WAITING)
        self._back_off, self._again_s = BackOff(1.0, 60.0), 0.0

    def tell(self, who: Identity, condition: Condition) -> None:
        """Have one sent."""
        bad = (condition.status == "True") is (condition.type == DEGRADED) or (
            condition.type == READY and condition.status != "True"
        )
        note = f"{self._node}: {condition.type} is {condition.status}: {' '.join(condition.message.split())}"
        document = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{who.name}.{uuid.uuid4().hex[:16]}", "namespace": who.namespace},
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
                "name": who.name,
                "namespace": who.namespace,
                "uid": who.uid,
            },
        }
        self._waiting.append((f"/apis/events.k8s.io/v1/namespaces/{who.namespace}/events", document))

    def step(self, now_s: float) -> None:
        """Send what waits. Raises ApiError; those that the server will never take are dropped."""
        while self._waiting and now_s >= self._again_s:
            path, document = self._waiting[0]
            try:
                self._api.create(path, document)
            except ApiError as error:
                if error.status in {400, 403, 404, 409, 422}:
                    self._waiting.popleft()
                else:
                    self._again_s = now_s + self._back_off.failed(error)
                raise
            self._waiting.popleft()
            self._back_off.succeeded()
