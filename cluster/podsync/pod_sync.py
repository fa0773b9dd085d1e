"""Pods follow their loops at the API server: limits by in-place resize, egress rates and priorities by annotations.

The loop writes the kernel's knobs and does not wait for this. The API server's values are those that the scheduler
counts, that users see, and that hold when no loop runs; the original values are restored when control ends.

A container without a CPU limit is left alone: a resize cannot take a limit away again
(kubernetes, pkg/apis/core/validation, ``validateContainerResize``).
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
from slicepilot.cluster.resources.pod import EGRESS_NOTE, NOTES, PRIORITY_NOTE, Container, Pod
from slicepilot.cluster.resources.quantities import bandwidth_text, cpu_text, mcpu
from slicepilot.cluster.resources.slice_set import Follow

from .field_sync import FieldSync, near
from .originals import Original, OriginalsFile

STEP_S = 1.0
INFEASIBLE_S = 60.0
LEAST_STEP_MCPU = 10.0
UNKNOWN_S = 60.0
"""A pod keeps its values for so long while its loop reports nothing: a restart takes some seconds."""
RESTORE_EVERY_S = 2.0
LIMIT = "cpu"
RESIZE_ERROR = "Error"
"""Reason of a resize under way that the kubelet cannot carry out and tries again (kubernetes, ``PodReasonError``)."""
Key = tuple[str, str]
"""A SliceSet's uid, and a slice's name."""


@dataclass(frozen=True)
class Followed:
    """A slice whose pod follows its loop.

    Attributes:
        generation: of its SliceSet.
        pod, container: of its UPF.
        follow: as declared.
        limit_mcpu, egress_mbps: as the loop has set them, inf for no limit; None: it reports nothing, or does not act.
    """

    generation: int
    pod: Pod
    container: str
    follow: Follow
    limit_mcpu: float | None
    egress_mbps: float | None


class PodSync:
    """`post` from the main thread, `step` from the thread that may wait for the API server.

    Args:
        api: the server.
        node: name of the agent's node.
        folder: of the file of original values.

    Raises:
        FailureError: see `OriginalsFile`.
    """

    def __init__(self, api: Api, node: str, folder: Path) -> None:
        self._api, self._manager = api, manager(node)
        self._originals = OriginalsFile(folder)
        self._lock = threading.Lock()
        self._followed: dict[Key, Followed] = {}
        self._pods: dict[str, Pod] | None = None
        self._fields: dict[tuple[Key, int, str, str], FieldSync] = {}
        self._restores: dict[str, FieldSync] = {}
        self._unknown_s: dict[Key, float] = {}
        self._troubles: dict[Key, str] = {}

    def post(self, followed: Mapping[Key, Followed], pods: Sequence[Pod]) -> None:
        """Set what is to be followed now, and all pods of this node."""
        with self._lock:
            self._followed, self._pods = dict(followed), {pod.uid: pod for pod in pods}

    @property
    def troubles(self) -> dict[Key, str]:
        with self._lock:
            return dict(self._troubles)

    @property
    def restoring(self) -> bool:
        """Whether a pod that is not followed any more has still to get its own values back."""
        with self._lock:
            followed, pods = {item.pod.uid for item in self._followed.values()}, self._pods or {}
        return any(uid in pods and uid not in followed for uid in self._originals.pods)

    def step(self, now_s: float) -> None:
        """Make the changes that are due, for at most `STEP_S` and a request. Raises the first ApiError at the end."""
        with self._lock:
            followed, pods = dict(self._followed), self._pods
        if pods is None:
            return
        self._unknown_s = {key: since_s for key, since_s in self._unknown_s.items() if key in followed}
        held = {key: item for key, item in followed.items() if not self._unknown(key, item, now_s)}
        current = {(key, item.generation, item.pod.uid) for key, item in held.items()}
        self._fields = {key: state for key, state in self._fields.items() if key[:3] in current}
        calls: list[Callable[[], None]] = [
            partial(self._restore, uid, pods.get(uid), held, now_s) for uid in self._originals.pods
        ]
        for key, item in held.items():
            calls += [partial(self._sync_limit, key, item, now_s), partial(self._sync_notes, key, item, now_s)]
        first: ApiError | None = None
        until_s = time.monotonic() + STEP_S
        for call in calls:
            try:
                call()
            except ApiError as error:
                first = first or error
            except OSError as error:  # nothing was sent
                first = first or ApiError(0, f"the pods' original values cannot be stored: {error.strerror or error}")
            except ValueError as error:  # a range that another version's schema has let through
                first = first or ApiError(0, str(error))
            if time.monotonic() > until_s:
                break
        with self._lock:
            self._troubles = {key: text for key, item in held.items() if (text := self._trouble(key, item))}
        if first is not None:
            raise first

    def _sync_limit(self, key: Key, item: Followed, now_s: float) -> None:
        span, pod = item.follow.cpu_limit_mcpu, item.pod
        if span is None:
            return
        state = self._field(key, item, LIMIT)
        container = pod.container(item.container)
        refusal = "its pod is away" if container is None else _refusal(pod, container)
        if refusal is not None or container is None or container.cpu_limit is None:
            state.trouble = refusal
            return
        has_mcpu = mcpu(container.cpu_limit)
        state.observe(_normalized(has_mcpu), pod.resized_by or "an edit of the pod", now_s)
        original = self._originals.pods.get(pod.uid) or Original(pod.namespace, pod.name, item.container)
        if state.yielded:  # another manager has the field: nothing is put back
            self._originals.put(pod.uid, original.without_limit())
            return
        if item.limit_mcpu is None:
            return
        if pod.resize is not None and pod.resize[1] == "Infeasible":
            # Asking for the original limit ends the resize that the node can never carry out.
            if original.cpu_limit is not None and mcpu(original.cpu_limit) != has_mcpu:
                self._resize(pod, container.name, original.cpu_limit, original.cpu_request, state, now_s)
            state.wait(f"infeasible: {pod.resize[2]}", now_s, INFEASIBLE_S)
            return
        wanted_mcpu = _within(span, item.limit_mcpu, 0.0 if pod.guaranteed else container.cpu_request_mcpu)
        close = abs(wanted_mcpu - has_mcpu) < LEAST_STEP_MCPU or near(has_mcpu, wanted_mcpu)
        if not state.due(_normalized(has_mcpu), _normalized(wanted_mcpu), close and not state.contested, now_s):
            if pod.resize is not None and pod.resize[0] == "PodResizePending":
                state.trouble = f"its resize waits: {pod.resize[1]}: {pod.resize[2]}"
            elif pod.resize is not None and pod.resize[1] == RESIZE_ERROR:
                state.trouble = f"its resize fails: {pod.resize[2]}"
            elif close:
                state.trouble = None
            return
        if original.cpu_limit is None:
            # A pod of class Guaranteed keeps its class only if its request goes along.
            request = cpu_text(container.cpu_request_mcpu) if pod.guaranteed else None
            self._originals.put(pod.uid, replace(original, cpu_limit=container.cpu_limit, cpu_request=request))
        text = cpu_text(wanted_mcpu)
        self._resize(pod, container.name, text, text if pod.guaranteed else None, state, now_s)

    def _sync_notes(self, key: Key, item: Followed, now_s: float) -> None:
        wanted: dict[str, str] = {}
        if item.follow.egress_mbps is not None and item.egress_mbps is not None:
            wanted[EGRESS_NOTE] = bandwidth_text(_within(item.follow.egress_mbps, item.egress_mbps, 0.0))
        if item.follow.priority is not None:
            wanted[PRIORITY_NOTE] = item.follow.priority
        for note, value in wanted.items():
            pod = item.pod
            state, has = self._field(key, item, note), pod.notes.get(note)
            state.observe(has, "an edit of the pod", now_s)
            original = self._originals.pods.get(pod.uid) or Original(pod.namespace, pod.name, item.container)
            if state.yielded:
                self._originals.put(pod.uid, original.without(note))
                continue
            close = note == EGRESS_NOTE and has is not None and near(mcpu(has), mcpu(value)) and not state.contested
            if state.due(has, value, close, now_s):
                if note not in original.notes:
                    self._originals.put(pod.uid, replace(original, notes={**original.notes, note: has}))
                self._annotate(pod, {note: value}, state, now_s)

    def _restore(self, uid: str, pod: Pod | None, followed: Mapping[Key, Followed], now_s: float) -> None:
        """Put original values back where they are not followed any more."""
        if pod is None or pod.deleting:
            self._originals.drop(uid)
            self._restores.pop(uid, None)
            return
        original = self._originals.pods[uid]
        follows = [item.follow for item in followed.values() if item.pod.uid == uid]
        kept = {EGRESS_NOTE for follow in follows if follow.egress_mbps is not None}
        kept |= {PRIORITY_NOTE for follow in follows if follow.priority is not None}
        notes = {note: value for note, value in original.notes.items() if note not in kept}
        limit = None if any(follow.cpu_limit_mcpu is not None for follow in follows) else original.cpu_limit
        state = self._restores.setdefault(uid, FieldSync(RESTORE_EVERY_S, reassert=False))
        if limit is not None:
            container = pod.container(original.container)
            has = None if container is None else container.cpu_limit
            if has is not None and mcpu(has) != mcpu(limit):
                if not state.due("", None, near=False, now_s=now_s):
                    return
                self._resize(pod, original.container, limit, original.cpu_request, state, now_s)
            self._originals.put(uid, original.without_limit())
        elif notes and state.due("", None, near=False, now_s=now_s):
            self._annotate(pod, notes, state, now_s)
            self._originals.put(uid, original.without(*notes))
        if uid not in self._originals.pods:
            self._restores.pop(uid, None)

    def _field(self, key: Key, item: Followed, name: str) -> FieldSync:
        at = key, item.generation, item.pod.uid, name
        return self._fields.setdefault(at, FieldSync(item.follow.every_s, item.follow.reassert))

    def _trouble(self, key: Key, item: Followed) -> str:
        states = (self._fields.get((key, item.generation, item.pod.uid, name)) for name in (LIMIT, *NOTES))
        return "; ".join(dict.fromkeys(state.trouble for state in states if state is not None and state.trouble))

    def _unknown(self, key: Key, item: Followed, now_s: float) -> bool:
        """Whether its loop has reported nothing for so long that the pod gets its own values back."""
        if item.limit_mcpu is not None or item.egress_mbps is not None:
            self._unknown_s.pop(key, None)
            return False
        return now_s - self._unknown_s.setdefault(key, now_s) > UNKNOWN_S

    def _resize(
        self, pod: Pod, container: str, limit: str, request: str | None, state: FieldSync, now_s: float
    ) -> None:
        resources: dict[str, Any] = {"limits": {"cpu": limit}}
        if request is not None:
            resources["requests"] = {"cpu": request}
        change = {"spec": {"containers": [{"name": container, "resources": resources}]}}
        self._patch(pod, "/resize", change, _normalized(mcpu(limit)), state, now_s)

    def _annotate(self, pod: Pod, notes: Mapping[str, str | None], state: FieldSync, now_s: float) -> None:
        [value, *_] = notes.values()
        self._patch(pod, "", {"metadata": {"annotations": dict(notes)}}, value, state, now_s)

    def _patch(
        self, pod: Pod, subresource: str, change: dict[str, Any], value: str | None, state: FieldSync, now_s: float
    ) -> None:
        # The uid refuses another pod of the same name.
        document = {**change, "metadata": {"uid": pod.uid, **change.get("metadata", {})}}
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}{subresource}"
        try:
            self._api.patch(path, document, self._manager)
        except ApiError as error:
            state.refused(error, now_s)
            raise
        state.sent(value, now_s)


def _refusal(pod: Pod, container: Container) -> str | None:
    """Why a container's limit is left alone; None where it is not."""
    if container.cpu_limit is None:
        return "it has no CPU limit, which a resize could not take away again"
    if container.restarts:
        return "resizePolicy: another CPU limit would restart it (RestartContainer)"
    if pod.known_uid is None:
        return "a static pod cannot be resized"
    return None


def _within(span: tuple[float, float], value: float, least: float) -> float:
    """The value within the declared range; a limit below the request would be refused."""
    return max(least, min(max(value, span[0]), span[1]))


def _normalized(value_mcpu: float) -> str:
    """One spelling of a quantity: the API server turns 1000m into 1."""
    return f"{math.ceil(value_mcpu)}m"
