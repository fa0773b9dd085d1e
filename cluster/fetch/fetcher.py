"""Fetches what SliceSets refer to, keeps it, and asks again: by threads of its own, so that nobody waits for it.

Each namespace has one fetch at a time, and so holds up itself alone. A bundle that is here is not fetched again, since
its digest says what it is. Rules of the guard may change: they are asked for now and then, and when a SliceSet that
refers to them is edited.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import BackOff
from slicepilot.cluster.resources.pod import Pod
from slicepilot.cluster.resources.wanted import CONFIG_MAP, RULES, VOLUME, Fetched, Wanted

from . import config_map, image, volume
from .child import FetchError
from .image import Registries
from .store import Store, missing_parts

STEP_S = 0.25
RULES_S = 90.0
"""From one look at rules to the next, for each that a node has: so a node asks seldom, however many there are."""
EDITED_S = 5.0
"""Whoever edits a SliceSet again and again does not have them asked for more often than this."""
REST_S = 1.0
"""A namespace's next fetch comes so much later than the last one ended, or as long as that took: who makes SliceSets
anew again and again has a thread for half of the time."""
MOST_AT_ONCE = 4
MOST_IN_NAMESPACE = 8
AGAIN_S, MOST_AGAIN_S = 2.0, 120.0
VOLUME_AGAIN_S = 15.0
"""Of a volume nobody but this node is asked."""
LOOK_S = 5.0
TIDY_S = 600.0


@dataclass
class _Course:
    """How the fetching of one thing goes."""

    who: frozenset[tuple[str, int]]
    back_off: BackOff
    path: Path | None = None
    problem: str | None = None
    refusal: str | None = None
    asked_s: float = -1e9
    again_s: float = 0.0
    looked_s: float = -1e9
    marks: tuple[object, ...] = ()


class Fetcher:
    """`post` from the main thread; the rest is done by others, until it is closed.

    Args:
        api: the API server.
        registries: that may be asked.
        store: where things are kept.
        changed: called when something has become of something.
        failed: told of what goes wrong on this node itself.
    """

    def __init__(
        self,
        api: Api,
        registries: Registries,
        store: Store,
        changed: Callable[[], None],
        failed: Callable[[str, float], None],
    ) -> None:
        self._api, self._registries, self._store = api, registries, store
        self._changed, self._failed = changed, failed
        self._lock = threading.Lock()
        self._courses: dict[Wanted, _Course] = {}
        self._crowded: dict[Wanted, Fetched] = {}
        self._busy: set[str] = set()  # namespaces, also where what was wanted is not any more
        self._resting_s: dict[str, float] = {}
        self._pods: tuple[Pod, ...] = ()
        self._used: frozenset[Path] = frozenset()
        self._tidied_s = 0.0
        self._ended, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="fetch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Begin nothing any more; what is under way ends with the process."""
        self._ended.set()
        self._woken.set()

    def post(
        self,
        wanted: Mapping[Wanted, frozenset[tuple[str, int]]],
        pods: Sequence[Pod],
        used: Collection[Path],
    ) -> None:
        """What is wanted now, by whom, the older first; all pods of this node; and paths that loops run with."""
        with self._lock:
            counts: dict[str, int] = {}
            taken: dict[Wanted, frozenset[tuple[str, int]]] = {}
            self._crowded = {}
            for one, who in wanted.items():
                counts[one.namespace] = counts.get(one.namespace, 0) + 1
                if counts[one.namespace] <= MOST_IN_NAMESPACE:
                    taken[one] = who
                else:
                    text = f"{one.field}: {MOST_IN_NAMESPACE} others of this namespace are fetched; accepted: fewer"
                    self._crowded[one] = Fetched(problem=text)
            for one in [*self._courses]:
                if one not in taken:
                    del self._courses[one]
            for one, who in taken.items():
                course = self._courses.get(one)
                if course is None:
                    most_s = VOLUME_AGAIN_S if one.kind == VOLUME else MOST_AGAIN_S
                    self._courses[one] = _Course(who, BackOff(AGAIN_S, most_s))
                elif course.who != who:
                    course.who = who
                    course.again_s = min(course.again_s, course.asked_s + EDITED_S)
            self._pods, self._used = tuple(pods), frozenset(used)
        self._woken.set()

    @property
    def found(self) -> dict[Wanted, Fetched]:
        """What has become of what is wanted."""
        with self._lock:
            known = {one: Fetched(each.path, each.problem, each.refusal) for one, each in self._courses.items()}
            return known | self._crowded

    def _run(self) -> None:
        while not self._ended.is_set():
            self._woken.wait(STEP_S)
            self._woken.clear()
            now_s = time.monotonic()
            for one, course in self._due(now_s):
                thread = threading.Thread(target=self._fetch, args=(one, course), name="fetching", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no threads: tried again
                    with self._lock:
                        self._busy.discard(one.namespace)
            self._look(now_s)
            if now_s - self._tidied_s > TIDY_S:
                self._tidied_s = now_s
                self._store.tidy(self._in_use())
            self._ended.wait(STEP_S)

    def _due(self, now_s: float) -> list[tuple[Wanted, _Course]]:
        """What to fetch now; its namespace is marked as busy."""
        with self._lock:
            self._resting_s = {key: until_s for key, until_s in self._resting_s.items() if now_s < until_s}
            found = list[tuple[Wanted, _Course]]()
            for one, course in sorted(self._courses.items(), key=lambda item: item[1].asked_s):
                if len(self._busy) >= MOST_AT_ONCE:
                    break
                done = bool(one.digest) and course.path is not None
                waits = one.namespace in self._busy or one.namespace in self._resting_s
                if done or waits or now_s < course.again_s:
                    continue
                course.asked_s = now_s
                self._busy.add(one.namespace)
                found.append((one, course))
        return found

    def _fetch(self, one: Wanted, course: _Course) -> None:
        """In a thread of its own."""
        path: Path | None = None
        problem: str | None = None
        refusal: str | None = None
        try:
            path = self._kept(one) if course.path is None else None
            if path is None or one.kind == RULES:
                path = self._got(one)
            if one.digest:
                course.marks = self._store.marks(path)
                refusal = self._store.refusal(path)
        except FetchError as error:
            problem = f"{one.field}: {error}"
        except (OSError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            # A fault of ours, or of the disk, costs this one alone, and is told.
            problem = f"{one.field}: {type(error).__name__}"
            self._failed(f"fetch {one.field}: {error!r}", MOST_AGAIN_S)
        with self._lock:
            before = course.path, course.problem, course.refusal
            course.problem = problem
            self._busy.discard(one.namespace)
            now_s = time.monotonic()
            self._resting_s[one.namespace] = now_s + max(REST_S, now_s - course.asked_s)
            if problem is None:
                course.path, course.refusal = path, refusal
                course.back_off.succeeded()
                count = sum(1 for each in self._courses if each.kind == RULES)
                course.again_s = now_s + RULES_S * max(1, count) * random.uniform(1.0, 1.1)
            else:
                course.path = course.path or path
                course.again_s = now_s + course.back_off.failed()
            news = before != (course.path, course.problem, course.refusal)
        if news:
            self._changed()

    def _kept(self, one: Wanted) -> Path | None:
        """From before: a node that starts while others are away has its bundles."""
        path = self._store.find(one)
        if path is None or not one.digest:
            return path
        if self._store.whole(path):
            return path
        self._store.drop(path)
        return None

    def _got(self, one: Wanted) -> Path:
        if one.kind == RULES:
            return self._store.put_rules(one, config_map.rules(self._api, one), self._in_use())
        if one.kind == CONFIG_MAP:
            parts = config_map.bundle(self._api, one)
        elif one.kind == VOLUME:
            parts = volume.fetch(one, self._pods)
        else:
            parts = image.fetch(one, self._registries)
        if lacking := missing_parts(parts):
            raise FetchError(f"no {', '.join(lacking)} there; accepted: the files of a policy bundle")
        return self._store.put_bundle(one, parts, self._in_use())

    def _in_use(self) -> frozenset[Path]:
        with self._lock:
            return self._used | {each.path for each in self._courses.values() if each.path is not None}

    def _look(self, now_s: float) -> None:
        """Whether bundles have been promoted meanwhile, by a command on the node."""
        with self._lock:
            held = [
                (each, each.path)
                for one, each in self._courses.items()
                if one.digest and each.path is not None and each.refusal and now_s - each.looked_s >= LOOK_S
            ]
        for course, path in held:
            course.looked_s = now_s
            marks = self._store.marks(path)
            if marks != course.marks:
                course.marks, course.refusal = marks, self._store.refusal(path)
                self._changed()
