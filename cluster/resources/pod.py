"""A pod of this node, with what concerns its loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .quantities import mcpu

RESIZE_CONDITIONS = ("PodResizePending", "PodResizeInProgress")
STATIC = "kubernetes.io/config.mirror"
"""Annotation of the object that mirrors a static pod, whose uid is not what the container runtime knows."""


EGRESS_NOTE, PRIORITY_NOTE = "kubernetes.io/egress-bandwidth", "bandwidth.cilium.io/priority"
NOTES = (EGRESS_NOTE, PRIORITY_NOTE)
"""Annotations by which Cilium's bandwidth manager paces a pod."""


@dataclass(frozen=True)
class Container:
    """A container.

    Attributes:
        running: whether it runs.
        cpu_request_mcpu: 0: none.
        cpu_limit: as specified; None: none.
        restarts: another CPU limit would restart it (``resizePolicy``).
    """

    name: str
    running: bool
    cpu_request_mcpu: float = 0.0
    cpu_limit: str | None = None
    restarts: bool = False


@dataclass(frozen=True)
class Pod:
    """A pod.

    Attributes:
        deleting: its deletion was requested.
        lasting_name: whether its successor will have the same name, as in a StatefulSet.
        known_uid: uid known to the container runtime; None where it differs from the API server's.
        guaranteed: its class of quality of service is Guaranteed.
        resize: type, reason and message of the condition of a resize that is delayed or refused; None: there is none.
        resized_by: name of the manager that has resized it last; None: it was never resized.
        notes: its annotations of `NOTES`.
    """

    name: str
    namespace: str
    uid: str
    labels: Mapping[str, str]
    deleting: bool
    lasting_name: bool
    known_uid: str | None
    containers: tuple[Container, ...]
    guaranteed: bool = False
    resize: tuple[str, str, str] | None = None
    resized_by: str | None = None
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    def container(self, name: str | None) -> Container | None:
        """The container of this name, or the only item; None where there is none, or several without a name given."""
        named = [container for container in self.containers if name in {None, container.name}]
        return named[0] if len(named) == 1 else None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Pod:
        meta, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
        states = {item["name"]: item.get("state") or {} for item in status.get("containerStatuses") or ()}
        owners = meta.get("ownerReferences") or ()
        containers = tuple(_container(item, states.get(item["name"], {})) for item in spec.get("containers") or ())
        annotations = meta.get("annotations") or {}
        return cls(
            name=meta["name"],
            namespace=meta["namespace"],
            uid=meta["uid"],
            labels=dict(meta.get("labels") or {}),
            deleting="deletionTimestamp" in meta,
            lasting_name=any(item.get("kind") == "StatefulSet" and item.get("controller") for item in owners),
            known_uid=None if STATIC in annotations else meta["uid"],
            containers=containers,
            guaranteed=status.get("qosClass") == "Guaranteed",
            resize=_resize(status),
            resized_by=_resized_by(meta),
            notes={key: str(annotations[key]) for key in NOTES if key in annotations},
        )


def _container(spec: Mapping[str, Any], state: Mapping[str, Any]) -> Container:
    resources = spec.get("resources") or {}
    policies = {item.get("resourceName"): item.get("restartPolicy") for item in spec.get("resizePolicy") or ()}
    limit = (resources.get("limits") or {}).get("cpu")
    return Container(
        spec["name"],
        "running" in state,
        mcpu((resources.get("requests") or {}).get("cpu", "0")),
        None if limit is None else str(limit),
        policies.get("cpu") == "RestartContainer",
    )


def _resize(status: Mapping[str, Any]) -> tuple[str, str, str] | None:
    for item in status.get("conditions") or ():
        if item.get("type") in RESIZE_CONDITIONS and item.get("status") == "True":
            return item["type"], str(item.get("reason") or ""), " ".join(str(item.get("message") or "").split())
    return None


def _resized_by(meta: Mapping[str, Any]) -> str | None:
    """https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management"""
    entries = [item for item in meta.get("managedFields") or () if item.get("subresource") == "resize"]
    newest = max(entries, key=lambda item: str(item.get("time") or ""), default=None)
    return None if newest is None else str(newest.get("manager"))
