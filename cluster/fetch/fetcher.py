"""Fetches the bundles and guard rules that SliceSets refer to, in threads of its own, and tries again after failures.

Each namespace has one fetch at a time, so a slow fetch delays its own namespace only. A stored bundle is not fetched
again: its digest identifies it. Guard rules may change: they are fetched again now and then, and whenever a SliceSet
that refers to them is edited.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import BackOff
from slicepilot.cluster.resources.wanted import CONFIG_MAP, RULES, VOLUME, Fetched, Wanted

from .sources import FetchError, bundle_in_config_map, bundle_in_volume, rules
from .store import Store, missing_parts

STEP_S = 0.25
RULES_S = 90.0
"""Time between two looks at a ConfigMap of rules, multiplied by the number of such ConfigMaps of the node."""
EDITED_S = 5.0
"""Least time between two looks at rules whose SliceSet is edited again and again."""
REST_S = 1.0
"""Least time between two fetches of a namespace; as long as the last fetch took if that is longer."""
MOST_AT_ONCE = 4
MOST_IN_NAMESPACE = 8
RETRY_S, MOST_RETRY_S = 2.0, 120.0
VOLUME_RETRY_S = 15.0
"""Longest wait for volumes, which put no load on a server."""
PROMOTION_S = 5.0
TIDY_S = 600.0


@dataclass
class _State:
    """The state of a fetch.

    Attributes:
        sets: SliceSets that refer to it, by uid and generation.
        marks: of promotion and signature when they were last checked (`Store.marks`).
    """

    sets: frozenset[tuple[str, int]]
    back_off: BackOff
    path: Path | None = None
    problem: str | None = None
    refusal: str | None = None
    started_s: float = -1e9
    due_s: float = 0.0
    checked_s: float = -1e9
    marks: tuple[object, ...] = ()


class Fetcher:
    """`post` from the main thread; other threads do the rest until it is closed.

    Args:
        api: the API server.
        volumes: folder of the mounted volumes (`sources.bundle_in_volume`); None: there are none.
        store: keeps what was fetched.
        changed: called when the state of a fetch has changed.
        failed: called with faults of this node itself.
    """

    def __init__(
        self,
        api: Api,
        volumes: Path | None,
        store: Store,
        changed: Callable[[], None],
        failed: Callable[[str, float], None],
    ) -> None:
        self._api, self._volumes, self._store = api, volumes, store
        self._changed, self._failed = changed, failed
        self._lock = threading.Lock()
        self._states: dict[Wanted, _State] = {}
        self._over_limit: dict[Wanted, Fetched] = {}
        self._busy: set[str] = set()  # namespaces, even if nothing of theirs is wanted any more
        self._resting_s: dict[str, float] = {}
        self._used: frozenset[Path] = frozenset()
        self._tidied_s = 0.0
        self._ended, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="fetch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Start no further fetch; those in progress end with the process."""
        self._ended.set()
        self._woken.set()

    def post(self, wanted: Mapping[Wanted, frozenset[tuple[str, int]]], used: Collection[Path]) -> None:
        """Set what is wanted now and by which SliceSets, the older first; and the paths that loops run with."""
        with self._lock:
            counts: dict[str, int] = {}
            self._over_limit = {}
            states = self._states
            self._states = {}
            for item, sets in wanted.items():
                counts[item.namespace] = counts.get(item.namespace, 0) + 1
                if counts[item.namespace] > MOST_IN_NAMESPACE:
                    text = f"{item.field}: this namespace already refers to {MOST_IN_NAMESPACE} others; expected fewer"
                    self._over_limit[item] = Fetched(problem=text)
                    continue
                most_s = VOLUME_RETRY_S if item.kind == VOLUME else MOST_RETRY_S
                state = self._states[item] = states.get(item) or _State(sets, BackOff(RETRY_S, most_s))
                if state.sets != sets:
                    state.sets = sets
                    state.due_s = min(state.due_s, state.started_s + EDITED_S)
            self._used = frozenset(used)
        self._woken.set()

    @property
    def fetched(self) -> dict[Wanted, Fetched]:
        """The state of each wanted item."""
        with self._lock:
            known = {item: Fetched(entry.path, entry.problem, entry.refusal) for item, entry in self._states.items()}
            return known | self._over_limit

    def _run(self) -> None:
        while not self._ended.is_set():
            self._woken.wait(STEP_S)
            self._woken.clear()
            now_s = time.monotonic()
            for item, state in self._due(now_s):
                thread = threading.Thread(target=self._fetch, args=(item, state), name="fetching", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no threads left: tried again
                    with self._lock:
                        self._busy.discard(item.namespace)
            self._check_promotions(now_s)
            if now_s - self._tidied_s > TIDY_S:
                self._tidied_s = now_s
                self._store.tidy(self._in_use())
            self._ended.wait(STEP_S)

    def _due(self, now_s: float) -> list[tuple[Wanted, _State]]:
        """Items to fetch now; their namespaces are marked as busy."""
        with self._lock:
            self._resting_s = {key: until_s for key, until_s in self._resting_s.items() if now_s < until_s}
            due = list[tuple[Wanted, _State]]()
            for item, state in sorted(self._states.items(), key=lambda pair: pair[1].started_s):
                if len(self._busy) >= MOST_AT_ONCE:
                    break
                done = bool(item.digest) and state.path is not None
                waits = item.namespace in self._busy or item.namespace in self._resting_s
                if done or waits or now_s < state.due_s:
                    continue
                state.started_s = now_s
                self._busy.add(item.namespace)
                due.append((item, state))
        return due

    def _fetch(self, item: Wanted, state: _State) -> None:
        """Fetch an item, in a thread of its own."""
        path: Path | None = None
        problem: str | None = None
        refusal: str | None = None
        try:
            path = self._stored(item) if state.path is None else None
            if path is None or item.kind == RULES:
                path = self._fetched(item)
            if item.digest:
                state.marks = self._store.marks(path)
                refusal = self._store.refusal(path)
        except FetchError as error:
            problem = f"{item.field}: {error}"
        except (OSError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            # A fault of this program or of the disk affects this fetch only, and is reported.
            problem = f"{item.field}: {type(error).__name__}"
            self._failed(f"fetch {item.field}: {error!r}", MOST_RETRY_S)
        with self._lock:
            before = state.path, state.problem, state.refusal
            state.problem = problem
            self._busy.discard(item.namespace)
            now_s = time.monotonic()
            self._resting_s[item.namespace] = now_s + max(REST_S, now_s - state.started_s)
            if problem is None:
                state.path, state.refusal = path, refusal
                state.back_off.succeeded()
                count = sum(1 for each in self._states if each.kind == RULES)
                state.due_s = now_s + RULES_S * max(1, count) * random.uniform(1.0, 1.1)
            else:
                state.path = state.path or path
                state.due_s = now_s + state.back_off.failed()
            changed = before != (state.path, state.problem, state.refusal)
        if changed:
            self._changed()

    def _stored(self, item: Wanted) -> Path | None:
        """The folder that an earlier fetch has stored, so that a node has its bundles while their sources are away."""
        path = self._store.find(item)
        if path is None or not item.digest or self._store.whole(path):
            return path
        self._store.drop(path)
        return None

    def _fetched(self, item: Wanted) -> Path:
        if item.kind == RULES:
            return self._store.put_rules(item, rules(self._api, item), self._in_use())
        if item.kind == CONFIG_MAP:
            parts = bundle_in_config_map(self._api, item)
        else:
            parts = bundle_in_volume(self._volumes, item)
        if missing := missing_parts(parts):
            raise FetchError(f"no {', '.join(missing)} there; expected: the files of a policy bundle")
        return self._store.put_bundle(item, parts, self._in_use())

    def _in_use(self) -> frozenset[Path]:
        with self._lock:
            return self._used | {state.path for state in self._states.values() if state.path is not None}

    def _check_promotions(self, now_s: float) -> None:
        """Notice bundles that a command on the node has promoted."""
        with self._lock:
            refused = [
                (state, state.path)
                for item, state in self._states.items()
                if item.digest and state.path and state.refusal and now_s - state.checked_s >= PROMOTION_S
            ]
        for state, path in refused:
            state.checked_s = now_s
            marks = self._store.marks(path)
            if marks != state.marks:
                state.marks, state.refusal = marks, self._store.refusal(path)
                self._changed()
