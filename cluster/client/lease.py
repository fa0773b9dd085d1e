"""A Lease, by which one of several agents acts (https://kubernetes.io/docs/concepts/architecture/leases/).

A lease has expired when it was not renewed for its duration by the local monotonic clock, since this version of it was
first seen, as in client-go (k8s.io/client-go/tools/leaderelection). An agent that holds it and cannot reach the API
server keeps it: no other could take it there either.

The client library's election was measured with kubernetes 37.0.2 (`LeaderElection` with `LeaseLock`, against the server
of `tests/k8s_api/server.py`) and is not used: it goes by the time of day, so a candidate whose clock jumps ahead by an
hour takes a lease that is held (`tests/cluster/test_clocks.py`); a renewal takes two requests instead of one, so that
the two Leases of an agent alone would take more than a request in ten seconds; nothing releases a lease; and `run`
blocks a thread.
"""

from __future__ import annotations

import contextlib
import datetime
import random
from typing import Any

from .connection import Api
from .errors import ApiError, BackOff

DURATION_S, RENEW_S, POLL_S = 120.0, 40.0, 20.0
CONFLICT, NOT_FOUND = 409, 404


class Lease:
    """A Lease that is held or waited for; call `step` often.

    Args:
        api: the server.
        namespace, name: of the object.
        identity: of this candidate. One that restarts under the same identity has the Lease at once.
        renew_s, poll_s: time between renewals, and between requests while another candidate holds it.
        duration_s: it expires when it was not renewed for so long.

    Attributes:
        held: whether this candidate holds it, as far as is known.
        holder: identity of the holder, as last seen.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        duration_s: float = DURATION_S,
        renew_s: float = RENEW_S,
        poll_s: float = POLL_S,
    ) -> None:
        self._api, self._namespace, self._name, self._identity = api, namespace, name, identity
        self._duration_s, self._renew_s, self._poll_s = duration_s, renew_s, poll_s
        self._known: dict[str, Any] | None = None
        self._seen_s = 0.0
        self._back_off = BackOff(1.0, renew_s)
        self.held = False
        self.holder: str | None = None
        self.due_s = 0.0

    def step(self, now_s: float) -> None:
        """Renew it, or try to acquire it, when that is due.

        Raises:
            ApiError: a request failed; it is tried again later.
        """
        if now_s < self.due_s:
            return
        try:
            if self._known is None or not self.held:
                self._look(now_s)
            if self._known is None:
                self._keep(self._api.create(self._all, self._document({})), now_s)
            elif self._ours or self._free(now_s):
                self._keep(self._api.replace(self._path, self._document(self._known)), now_s)
        except ApiError as error:
            if error.status == CONFLICT:  # another candidate was faster; its version is read next
                self._known = None
                self.due_s = now_s + 1.0 + random.random()
                return
            if error.status == NOT_FOUND:  # removed meanwhile
                self._known = None
            self.due_s = now_s + self._back_off.failed(error)
            raise
        self._back_off.succeeded()
        self.held = self._ours
        self.due_s = now_s + (self._renew_s if self.held else self._poll_s) * (0.9 + 0.1 * random.random())

    def release(self) -> None:
        if not self.held or self._known is None:
            return
        self.held = False
        document = self._document(self._known)
        document["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
        with contextlib.suppress(ApiError):
            self._api.replace(self._path, document)

    @property
    def _all(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace}/leases"

    @property
    def _path(self) -> str:
        return f"{self._all}/{self._name}"

    @property
    def _ours(self) -> bool:
        return self.holder == self._identity

    def _look(self, now_s: float) -> None:
        try:
            result = self._api.get(self._path)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            self._known, self.holder = None, None
            return
        self._keep(result, now_s)

    def _keep(self, result: dict[str, Any], now_s: float) -> None:
        before = None if self._known is None else self._known["metadata"].get("resourceVersion")
        if result["metadata"].get("resourceVersion") != before:
            self._seen_s = now_s
        self._known = result
        self.holder = (result.get("spec") or {}).get("holderIdentity") or None

    def _free(self, now_s: float) -> bool:
        spec = (self._known or {}).get("spec") or {}
        lasts_s = float(spec.get("leaseDurationSeconds") or self._duration_s)
        return self.holder is None or now_s - self._seen_s > lasts_s

    def _document(self, known: dict[str, Any]) -> dict[str, Any]:
        """The Lease with this candidate as its holder."""
        meta, spec = (
            known.get("metadata") or {"name": self._name, "namespace": self._namespace},
            known.get("spec") or {},
        )
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        taken = spec.get("holderIdentity") != self._identity
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": meta,
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": int(self._duration_s),
                "renewTime": now,
                "acquireTime": now if taken else spec.get("acquireTime", now),
                "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (1 if taken and known else 0),
            },
        }
