"""A pod of this node, as far as a loop is concerned."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

RESIZE_CONDITIONS = ("PodResizePending", "PodResizeInProgress")
STATIC = "kubernetes.io/config.mirror"
"""Annotation of what stands for a static pod, whose uid is not the one that the container runtime knows."""
QUANTITY = re.compile(r"^([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(m|k|M|)$")
SCALES = {"m": 1.0, "": 1e3, "k": 1e6, "M": 1e9}


EGRESS_NOTE, PRIORITY_NOTE = "kubernetes.io/egress-bandwidth", "bandwidth.cilium.io/priority"
NOTES = (EGRESS_NOTE, PRIORITY_NOTE)
"""Annotations by which Cilium's bandwidth manager paces a pod."""


@dataclass(frozen=True)
class Container:
    """One container.

    Attributes:
        running: whether it runs.
        cpu_request_mcpu: 0: none.
        cpu_limit: as its specification has it; None: none.
        restarts: another CPU limit would start it anew (``resizePolicy``).
        mounts: volumes that it sees whole, by the pod's name for them, and where.
    """

    name: str
    running: bool
    cpu_request_mcpu: float = 0.0
    cpu_limit: str | None = None
    restarts: bool = False
    mounts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Pod:
    """One pod.

    Attributes:
        deleting: somebody has asked for its end.
        lasting_name: whether whoever has made it gives the next one the same name, as a StatefulSet does.
        known_uid: as the container runtime has it; None where that is another one than the API server's.
        guaranteed: its class of quality of service has limits and requests alike.
        resize: how a resize that was asked for is going on, type, reason and message of its condition; None: well.
        resized_by: who has resized it last, as the API server knows clients; None: nobody.
        notes: those of `NOTES` that it has.
        claims: its volumes that are PersistentVolumeClaims: name of the volume, and of the claim.
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
    claims: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Which one it is, in the cluster."""
        return self.namespace, self.name

    def container(self, name: str | None) -> Container | None:
        """By name, or the only one; None where there is none, or it is not clear which is meant."""
        found = [one for one in self.containers if name in {None, one.name}]
        return found[0] if len(found) == 1 else None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Pod:
        """From the API's JSON."""
        meta, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
        states = {one["name"]: one.get("state") or {} for one in status.get("containerStatuses") or ()}
        owners = meta.get("ownerReferences") or ()
        containers = tuple(_container(one, states.get(one["name"], {})) for one in spec.get("containers") or ())
        annotations = meta.get("annotations") or {}
        return cls(
            name=meta["name"],
            namespace=meta["namespace"],
            uid=meta["uid"],
            labels=dict(meta.get("labels") or {}),
            deleting="deletionTimestamp" in meta,
            lasting_name=any(one.get("kind") == "StatefulSet" and one.get("controller") for one in owners),
            known_uid=None if STATIC in annotations else meta["uid"],
            containers=containers,
            guaranteed=status.get("qosClass") == "Guaranteed",
            resize=_resize(status),
            resized_by=_resized_by(meta),
            notes={key: str(annotations[key]) for key in NOTES if key in annotations},
            claims=tuple(_claims(spec)),
        )


def _container(spec: Mapping[str, Any], state: Mapping[str, Any]) -> Container:
    resources = spec.get("resources") or {}
    policies = {one.get("resourceName"): one.get("restartPolicy") for one in spec.get("resizePolicy") or ()}
    limit = (resources.get("limits") or {}).get("cpu")
    return Container(
        spec["name"],
        "running" in state,
        mcpu((resources.get("requests") or {}).get("cpu", "0")),
        None if limit is None else str(limit),
        policies.get("cpu") == "RestartContainer",
        tuple(
            (str(one["name"]), str(one["mountPath"]))
            for one in spec.get("volumeMounts") or ()
            if not one.get("subPath") and not one.get("subPathExpr")
        ),
    )


def _claims(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for one in spec.get("volumes") or ():
        claim = one.get("persistentVolumeClaim")
        if claim:
            yield str(one["name"]), str(claim["claimName"])


def _resize(status: Mapping[str, Any]) -> tuple[str, str, str] | None:
    for one in status.get("conditions") or ():
        if one.get("type") in RESIZE_CONDITIONS and one.get("status") == "True":
            return one["type"], str(one.get("reason") or ""), " ".join(str(one.get("message") or "").split())
    return None


def _resized_by(meta: Mapping[str, Any]) -> str | None:
    """https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management"""
    found = [one for one in meta.get("managedFields") or () if one.get("subresource") == "resize"]
    newest = max(found, key=lambda one: str(one.get("time") or ""), default=None)
    return None if newest is None else str(newest.get("manager"))


def mcpu(quantity: str | float) -> float:
    """A quantity of CPU in thousandths; 0 for what is none.

    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
    """
    found = QUANTITY.match(str(quantity))
    return float(found[1]) * SCALES[found[2]] if found else 0.0
