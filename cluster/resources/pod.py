"""A pod of this node, as far as a loop is concerned."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STATIC = "kubernetes.io/config.mirror"
"""Annotation of what stands for a static pod, whose uid is not the one that the container runtime knows."""
QUANTITY = re.compile(r"^([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(m|k|M|)$")
SCALES = {"m": 1.0, "": 1e3, "k": 1e6, "M": 1e9}


@dataclass(frozen=True)
class Container:
    """One container: whether it runs, and its CPU request in mCPU (0: none)."""

    name: str
    running: bool
    cpu_request_mcpu: float = 0.0


@dataclass(frozen=True)
class Pod:
    """One pod.

    Attributes:
        deleting: somebody has asked for its end.
        lasting_name: whether whoever has made it gives the next one the same name, as a StatefulSet does.
        known_uid: as the container runtime has it; None where that is another one than the API server's.
    """

    name: str
    namespace: str
    uid: str
    labels: Mapping[str, str]
    deleting: bool
    lasting_name: bool
    known_uid: str | None
    containers: tuple[Container, ...]

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
        containers = tuple(
            Container(
                one["name"],
                "running" in states.get(one["name"], {}),
                mcpu((((one.get("resources") or {}).get("requests")) or {}).get("cpu", "0")),
            )
            for one in spec.get("containers") or ()
        )
        return cls(
            name=meta["name"],
            namespace=meta["namespace"],
            uid=meta["uid"],
            labels=dict(meta.get("labels") or {}),
            deleting="deletionTimestamp" in meta,
            lasting_name=any(one.get("kind") == "StatefulSet" and one.get("controller") for one in owners),
            known_uid=None if STATIC in (meta.get("annotations") or {}) else meta["uid"],
            containers=containers,
        )


def mcpu(quantity: str | float) -> float:
    """A quantity of CPU in thousandths; 0 for what is none.

    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
    """
    found = QUANTITY.match(str(quantity))
    return float(found[1]) * SCALES[found[2]] if found else 0.0
