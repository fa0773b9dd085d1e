"""A list at the API server, kept up to date here: listed once, then watched, and watched again from where it was.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .connection import Api, Watching
from .errors import ApiError, BackOff

GONE = 410
PAGE = "500"
LEAST_WATCH_S, MOST_WATCH_S = 300, 600
"""How long a watch lasts; drawn, so that the watches of many nodes do not end together."""
SILENT_S = 90.0
"""Beyond a watch's end. While it lasts, keep-alives of TCP notice a server that has gone."""


@dataclass(frozen=True)
class Source:
    """What is listed.

    Attributes:
        path: at the API server.
        query: selectors.
        metadata_only: whether objects' metadata are enough.
    """

    path: str
    query: Mapping[str, str]
    metadata_only: bool = False


class Reflector:
    """Runs a thread of its own once started.

    Args:
        api: the server.
        source: what to list.
        changed: called after each change, in the reflector's thread.
        keep: what to keep of an object.
        failed: told of what goes wrong, with how long it waits then.

    Attributes:
        lists, watches: pages listed, and watches begun.
        heard_s: when the server last said something, since the epoch; 0: never.
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
        self._stop = threading.Event()
        self._watch: Watching | None = None
        self._synced = threading.Event()
        self._back_off = BackOff()
        self.lists = self.watches = 0
        self.heard_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"watch {source.path}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def synced(self) -> bool:
        """Whether it has been listed once: until then `objects` are nobody's."""
        return self._synced.is_set()

    def objects(self) -> list[Any]:
        """All that there are, as last known."""
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
                if error.status == GONE:  # it answers, and has forgotten where we were: listed anew, by turns
                    self._version = ""
                    self._back_off.succeeded()
                wait_s = self._back_off.failed(error)
                self._failed(f"{self._source.path}: {error}", wait_s)
                self._stop.wait(wait_s)

    def _list(self) -> None:
        found: dict[str, Any] = {}
        more = ""
        while True:
            query = {**self._source.query, "limit": PAGE, **({"continue": more} if more else {})}
            page = self._api.get(self._source.path, query, metadata_only=self._source.metadata_only)
            self.lists += 1
            self.heard_s = time.time()
            for one in page.get("items") or ():
                found[one["metadata"]["uid"]] = self._keep(one)
            meta = page.get("metadata") or {}
            more = meta.get("continue") or ""
            if not more:
                break
        with self._lock:
            self._objects = found
        self._version = meta.get("resourceVersion") or ""
        self._synced.set()
        self._changed()

    def _follow(self) -> None:
        """One watch, until the server ends it. Raises ApiError; GONE where it has forgotten where we were."""
        seconds = random.randint(LEAST_WATCH_S, MOST_WATCH_S)
        query = {
            **self._source.query,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        metadata_only = self._source.metadata_only
        watch = self._api.watch(self._source.path, query, seconds + SILENT_S, metadata_only=metadata_only)
        self._watch = watch
        self.watches += 1
        self.heard_s = time.time()
        try:
            with contextlib.closing(watch):
                if self._stop.is_set():
                    return
                for event in watch.events():
                    self._take(event)
                    self._back_off.succeeded()
        finally:
            self._watch = None
        # A server that ends each watch at once is not asked without end.
        self._stop.wait(0.2 + 0.3 * random.random())

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, document = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            raise ApiError(int(document.get("code") or 0), str(document.get("message")))
        self.heard_s = time.time()
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
