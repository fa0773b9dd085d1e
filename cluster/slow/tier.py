"""Follows loops at the API server: limits by in-place resize, egress rates and priorities by annotations.

The loop is the fast tier, and does not wait for this one. What is told here is what the scheduler reckons with, what
people see, and what holds when nobody controls; it is put back when that ends.

A container without a CPU limit has none afterwards, either: a resize cannot take one away again
(kubernetes, pkg/apis/core/validation, ``validateContainerResize``), so there it is left alone.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError
from slicepilot.cluster.resources.names import manager
from slicepilot.cluster.resources.pod import EGRESS_NOTE, NOTES, PRIORITY_NOTE, Container, Pod, mcpu
from slicepilot.cluster.resources.slice_set import Follow

from .course import Course, near
from .found import Found, FoundFile
from .quantities import bandwidth_text, cpu_text

STEP_S = 1.0
INFEASIBLE_S = 60.0
LEAST_STEP_MCPU = 10.0
UNKNOWN_S = 60.0
"""How long a pod is left as it is while its loop says nothing: one that is started anew takes some seconds."""
LIMIT = "cpu"
Key = tuple[str, str]
"""A SliceSet's uid, and a slice's name."""


@dataclass(frozen=True)
class Followed:
    """A slice whose pod follows its loop.

    Attributes:
        generation: of its SliceSet.
        pod, container: which.
        follow: what is declared.
        limit_mcpu, egress_mbps: what the loop has set, inf for none; None: it says nothing, or does not act.
    """

    generation: int
    pod: Pod
    container: str
    follow: Follow
    limit_mcpu: float | None
    egress_mbps: float | None


class SlowTier:
    """`post` from the main thread, `step` from the one that may wait for the API server.

    Args:
        api: the server.
        node: whose agent it is.
        folder: where what pods had is kept.

    Raises:
        FailureError: see `FoundFile`.
    """

    def __init__(self, api: Api, node: str, folder: Path) -> None:
        self._api, self._manager = api, manager(node)
        self._file = FoundFile(folder)
        self._lock = threading.Lock()
        self._followed: dict[Key, Followed] = {}
        self._pods: dict[str, Pod] | None = None
        self._courses: dict[tuple[Key, int, str, str], Course] = {}
        self._back: dict[str, Course] = {}
        self._silent_s: dict[Key, float] = {}
        self._troubles: dict[Key, str] = {}

    def post(self, followed: Mapping[Key, Followed], pods: Sequence[Pod]) -> None:
        """What is to be followed now, and all pods of this node."""
        with self._lock:
            self._followed, self._pods = dict(followed), {pod.uid: pod for pod in pods}

    @property
    def troubles(self) -> dict[Key, str]:
        """Why pods do not follow, a line each."""
        with self._lock:
            return dict(self._troubles)

    @property
    def owes(self) -> bool:
        """Whether something is to be given back to a pod that is not followed any more."""
        with self._lock:
            followed, there = {one.pod.uid for one in self._followed.values()}, self._pods or {}
        return any(uid in there and uid not in followed for uid in self._file.pods)

    def step(self, now_s: float) -> None:
        """Do what is due, for `STEP_S` and a request at most. Raises the first ApiError; the rest is tried, too."""
        with self._lock:
            followed, pods = dict(self._followed), self._pods
        if pods is None:
            return
        first: ApiError | None = None
        until_s = time.monotonic() + STEP_S
        for key in [*self._silent_s]:
            if key not in followed:
                del self._silent_s[key]
        held = {key: one for key, one in followed.items() if not self._silent(key, one, now_s)}
        keys = {(key, one.generation, one.pod.uid) for key, one in held.items()}
        self._courses = {key: one for key, one in self._courses.items() if key[:3] in keys}
        calls: list[Callable[[], None]] = [self._backwards(uid, pods, held, now_s) for uid in self._file.pods]
        for key, one in held.items():
            calls += [self._limit(key, one, now_s), self._notes(key, one, now_s)]
        for call in calls:
            try:
                call()
            except ApiError as error:
                first = first or error
            except OSError as error:  # nothing was sent
                first = first or ApiError(0, f"what pods had cannot be written: {error.strerror or error}")
            except ValueError as error:  # a range that a schema of another version has let through
                first = first or ApiError(0, str(error))
            if time.monotonic() > until_s:
                break
        with self._lock:
            self._troubles = {key: told for key, one in held.items() if (told := self._told(key, one))}
        if first is not None:
            raise first

    # -- following -----------------------------------------------------------------------------------------------

    def _limit(self, key: Key, one: Followed, now_s: float) -> Callable[[], None]:
        def call() -> None:
            span = one.follow.cpu_limit_mcpu
            if span is None:
                return
            course = self._course(key, one, LIMIT)
            container = one.pod.container(one.container)
            refused = "its pod is away" if container is None else _refusal(one.pod, container)
            if refused is not None or container is None or container.cpu_limit is None:
                course.trouble = refused
                return
            has_mcpu = mcpu(container.cpu_limit)
            course.look(_plain(has_mcpu), f"{one.pod.resized_by or 'an edit of the pod'}", now_s)
            if course.yielded:
                self._forget(one.pod.uid, _without_limit)
                return
            if one.limit_mcpu is None:
                return
            wanted_mcpu = _within(span, one.limit_mcpu, 0.0 if one.pod.guaranteed else container.cpu_request_mcpu)
            if one.pod.resize is not None and one.pod.resize[1] == "Infeasible":
                self._infeasible(one, container, course, now_s)
                return
            close = abs(wanted_mcpu - has_mcpu) < LEAST_STEP_MCPU or near(has_mcpu, wanted_mcpu)
            if not course.due(_plain(has_mcpu), _plain(wanted_mcpu), close and not course.contested, now_s):
                if one.pod.resize is not None and one.pod.resize[0] == "PodResizePending":
                    course.trouble = f"its resize waits: {one.pod.resize[1]}: {one.pod.resize[2]}"
                elif close:
                    course.trouble = None
                return
            self._remember(one, cpu_limit=container.cpu_limit, cpu_request=_request_of(one.pod, container))
            text = cpu_text(wanted_mcpu)
            self._resize(one.pod, container.name, text, text if one.pod.guaranteed else None, course, now_s)

        return call

    def _infeasible(self, one: Followed, container: Container, course: Course, now_s: float) -> None:
        """The node cannot do it, ever: what was found is asked for again, which ends that, and it is left alone."""
        assert one.pod.resize is not None
        found = self._file.pods.get(one.pod.uid)
        if (
            found is not None
            and found.cpu_limit is not None
            and mcpu(found.cpu_limit) != mcpu(container.cpu_limit or "0")
        ):
            self._resize(one.pod, container.name, found.cpu_limit, found.cpu_request, course, now_s)
        course.wait(f"infeasible: {one.pod.resize[2]}", now_s, INFEASIBLE_S)

    def _notes(self, key: Key, one: Followed, now_s: float) -> Callable[[], None]:
        def call() -> None:
            wanted: dict[str, str] = {}
            if one.follow.egress_mbps is not None and one.egress_mbps is not None:
                wanted[EGRESS_NOTE] = bandwidth_text(_within(one.follow.egress_mbps, one.egress_mbps, 0.0))
            if one.follow.priority is not None:
                wanted[PRIORITY_NOTE] = one.follow.priority
            for note, value in wanted.items():
                course, has = self._course(key, one, note), one.pod.notes.get(note)
                course.look(has, "an edit of the pod", now_s)
                if course.yielded:
                    self._forget(one.pod.uid, partial(_without, note))
                    continue
                close = note == EGRESS_NOTE and _near_rates(has, value) and not course.contested
                if course.due(has, value, close, now_s):
                    self._remember(one, note=note)
                    self._annotate(one.pod, {note: value}, course, now_s)

        return call

    def _course(self, key: Key, one: Followed, field: str) -> Course:
        at = key, one.generation, one.pod.uid, field
        if at not in self._courses:
            self._courses[at] = Course(one.follow.every_s, one.follow.reassert)
        return self._courses[at]

    def _told(self, key: Key, one: Followed) -> str:
        mine = (self._courses.get((key, one.generation, one.pod.uid, field)) for field in (LIMIT, *NOTES))
        return "; ".join(dict.fromkeys(course.trouble for course in mine if course is not None and course.trouble))

    def _silent(self, key: Key, one: Followed, now_s: float) -> bool:
        """Whether its loop has said nothing for so long that the pod is given back."""
        if one.limit_mcpu is not None or one.egress_mbps is not None:
            self._silent_s.pop(key, None)
            return False
        return now_s - self._silent_s.setdefault(key, now_s) > UNKNOWN_S

    # -- giving back ---------------------------------------------------------------------------------------------

    def _backwards(
        self, uid: str, pods: Mapping[str, Pod], followed: Mapping[Key, Followed], now_s: float
    ) -> Callable[[], None]:
        def call() -> None:
            found, pod = self._file.pods[uid], pods.get(uid)
            if pod is None or pod.deleting:
                self._drop(uid)
                return
            mine = [one.follow for one in followed.values() if one.pod.uid == uid]
            keeps_limit = any(follow.cpu_limit_mcpu is not None for follow in mine)
            kept_notes = {
                note
                for follow in mine
                for note, value in ((EGRESS_NOTE, follow.egress_mbps), (PRIORITY_NOTE, follow.priority))
                if value is not None
            }
            course = self._back.setdefault(uid, Course(2.0, reassert=False))
            notes = {note: value for note, value in found.notes.items() if note not in kept_notes}
            container = pod.container(found.container)
            if not keeps_limit and found.cpu_limit is not None:
                has = None if container is None else container.cpu_limit
                if has is not None and not _same(has, found.cpu_limit):
                    if not course.due("", None, near=False, now_s=now_s):
                        return
                    self._resize(pod, found.container, found.cpu_limit, found.cpu_request, course, now_s)
                self._file.put(uid, _without_limit(found))
            elif notes and course.due("", None, near=False, now_s=now_s):
                self._annotate(pod, notes, course, now_s)
                left = {note: value for note, value in found.notes.items() if note not in notes}
                self._file.put(uid, replace(found, notes=left))
            if uid in self._file.pods and self._file.pods[uid].nothing:
                self._drop(uid)

        return call

    def _drop(self, uid: str) -> None:
        self._file.drop([uid])
        self._back.pop(uid, None)

    # -- requests ------------------------------------------------------------------------------------------------

    def _resize(self, pod: Pod, container: str, limit: str, request: str | None, course: Course, now_s: float) -> None:
        resources: dict[str, Any] = {"limits": {"cpu": limit}}
        if request is not None:
            resources["requests"] = {"cpu": request}
        document = {
            "metadata": {"uid": pod.uid},  # another pod of its name is not meant
            "spec": {"containers": [{"name": container, "resources": resources}]},
        }
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/resize"
        self._sent(lambda: self._api.patch(path, document, self._manager), _plain(mcpu(limit)), course, now_s)

    def _annotate(self, pod: Pod, notes: Mapping[str, str | None], course: Course, now_s: float) -> None:
        document = {"metadata": {"uid": pod.uid, "annotations": dict(notes)}}
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        [value, *_] = notes.values()
        self._sent(lambda: self._api.patch(path, document, self._manager), value, course, now_s)

    @staticmethod
    def _sent(request: Callable[[], object], value: str | None, course: Course, now_s: float) -> None:
        try:
            request()
        except ApiError as error:
            course.refused(error, now_s)
            raise
        course.sent(value, now_s)

    # -- what was found ------------------------------------------------------------------------------------------

    def _remember(
        self,
        one: Followed,
        cpu_limit: str | None = None,
        cpu_request: str | None = None,
        note: str | None = None,
    ) -> None:
        """Before the first change of a field."""
        pod = one.pod
        found = self._file.pods.get(pod.uid) or Found(pod.namespace, pod.name, one.container)
        if cpu_limit is not None and found.cpu_limit is None:
            found = replace(found, cpu_limit=cpu_limit, cpu_request=cpu_request)
        if note is not None and note not in found.notes:
            found = replace(found, notes={**found.notes, note: pod.notes.get(note)})
        if found != self._file.pods.get(pod.uid):
            self._file.put(pod.uid, found)

    def _forget(self, uid: str, what: Callable[[Found], Found]) -> None:
        """Somebody else has it: nothing is given back."""
        found = self._file.pods.get(uid)
        if found is not None and what(found) != found:
            self._file.put(uid, what(found))


def _refusal(pod: Pod, container: Container) -> str | None:
    """Why a container's limit is left alone."""
    if container.cpu_limit is None:
        return "it has no CPU limit, which a resize could not take away again"
    if container.restarts:
        return "resizePolicy: another CPU limit would restart it (RestartContainer)"
    if pod.known_uid is None:
        return "a static pod cannot be resized"
    return None


def _request_of(pod: Pod, container: Container) -> str | None:
    """A request that has to go along, for the pod to keep its class of quality of service."""
    return cpu_text(container.cpu_request_mcpu) if pod.guaranteed else None


def _within(span: tuple[float, float], value: float, least: float) -> float:
    """Of what the loop has set; a limit below the request is refused."""
    return max(least, min(max(value, span[0]), span[1]))


def _plain(value_mcpu: float) -> str:
    """One way to write it: the API server turns 1000m into 1."""
    return f"{math.ceil(value_mcpu)}m"


def _same(one: str, other: str | None) -> bool:
    return other is not None and mcpu(one) == mcpu(other)


def _near_rates(has: str | None, wanted: str) -> bool:
    return has is not None and near(mcpu(has), mcpu(wanted))


def _without_limit(found: Found) -> Found:
    return replace(found, cpu_limit=None, cpu_request=None)


def _without(note: str, found: Found) -> Found:
    return replace(found, notes={key: value for key, value in found.notes.items() if key != note})
