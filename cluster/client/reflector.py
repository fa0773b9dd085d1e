"""A list at the API server, kept up to date: listed once, then watched, and watched again from the last version.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes

The client library's watch reads the events of one request. Measured with kubernetes 37.0.2 (`Watch.stream` against the
server of `tests/k8s_api/server.py`), it leaves the rest to its caller: it does not list; a server that ends each watch
at once gets the next request without a pause (73 requests in 4 s on a busy machine); 429 and its Retry-After, and a
second 410 in a row, end it with an exception. So listing in pages, back-off with jitter and the pause are here.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .connection import Api, Watch
from .errors import ApiError, BackOff

GONE = 410
PAGE = "500"
LEAST_WATCH_S, MOST_WATCH_S = 300, 600
"""Duration of a watch; drawn at random, so that the watches of many nodes do not end together."""
SILENT_S = 90.0
"""Time beyond a watch's end after which its connection is given up. Until its end, TCP keep-alives watch over it."""


@dataclass(frozen=True)
class Source:
    """A list of objects.

    Attributes:
        path: at the API server.
        query: selectors.
        metadata_only: whether the objects' metadata suffice.
    """

    path: str
    query: Mapping[str, str]
    metadata_only: bool = False


class Reflector:
    """Runs a thread of its own once started.

    Args:
        api: the server.
        source: the list.
        changed: called after each change, in the reflector's thread.
        keep: returns what is to be kept of an object.
        failed: called with each failure and the wait that follows it.

    Attributes:
        heard_s: time of the server's last answer or event, since the epoch; 0: never.
    """

    def __init__(
        self,
        api: Api,
        source: Source,
        changed: Callable[[], None],
        keep: Callable[[dict[str, Any]], Any] = lambda document: document,
        failed: Callable[[str, float], None] = lambda text, wait_s: None,
    ) -> None:
        self._api, self._source, self._changed, self._keep, self._failed = api, source, changed, keep, failed
        self._objects: dict[str, Any] = {}
        self._version = ""
        self._lock = threading.Lock()
        self._stop, self._synced = threading.Event(), threading.Event()
        self._watch: Watch | None = None
        self._back_off = BackOff()
        self.heard_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"watch {source.path}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def synced(self) -> bool:
        """Whether the list was complete once; before that `objects` means nothing."""
        return self._synced.is_set()

    def objects(self) -> list[Any]:
        with self._lock:
            return list(self._objects.values())

    def close(self) -> None:
        """End; does not wait for an answer that is on its way."""
        self._stop.set()
        watch = self._watch
        if watch is not None:
            watch.close()
        if self._thread.ident is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                self._follow()
            except ApiError as error:
                if self._stop.is_set():
                    return
                if error.status == GONE:  # the server answers, but has forgotten our version: list anew
                    self._version = ""
                    self._back_off.succeeded()
                wait_s = self._back_off.failed(error)
                self._failed(f"{self._source.path}: {error}", wait_s)
                self._stop.wait(wait_s)

    def _list(self) -> None:
        objects: dict[str, Any] = {}
        more = ""
        while True:
            query = {**self._source.query, "limit": PAGE, **({"continue": more} if more else {})}
            page = self._api.get(self._source.path, query, metadata_only=self._source.metadata_only)
            self.heard_s = time.time()
            for item in page.get("items") or ():
                objects[item["metadata"]["uid"]] = self._keep(item)
            meta = page.get("metadata") or {}
            more = meta.get("continue") or ""
            if not more:
                break
        with self._lock:
            self._objects = objects
        self._version = meta.get("resourceVersion") or ""
        self._synced.set()
        self._changed()

    def _follow(self) -> None:
        """One watch, until the server ends it. Raises ApiError; of status GONE if it has forgotten our version."""
        seconds = random.randint(LEAST_WATCH_S, MOST_WATCH_S)
        query = {
            **self._source.query,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        metadata_only = self._source.metadata_only
        self._watch = self._api.watch(self._source.path, query, seconds + SILENT_S, metadata_only=metadata_only)
        try:
            for event in self._watch.events():
                if self._stop.is_set():
                    return
                self._take(event)
                self._back_off.succeeded()
        finally:
            self._watch = None
        self._stop.wait(0.2 + 0.3 * random.random())

    def _take(self, event: Mapping[str, Any]) -> None:
        self.heard_s = time.time()
        kind, document = event.get("type"), event.get("object") or {}
        meta = document.get("metadata") or {}
        if kind in {"ADDED", "MODIFIED", "DELETED"}:
            with self._lock:
                if kind == "DELETED":
                    self._objects.pop(meta["uid"], None)
                else:
                    self._objects[meta["uid"]] = self._keep(document)
        self._version = meta.get("resourceVersion") or self._version
        if kind != "BOOKMARK":
            self._changed()
