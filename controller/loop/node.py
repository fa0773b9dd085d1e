"""One node that can be controlled: its backend, opened without write access, and where its knobs are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..actuators.egress import EgressConfig
from ..actuators.node import SliceTargets
from ..actuators.quota import QuotaConfig
from .live_backend import LiveBackend


@dataclass(frozen=True)
class Node:
    """What `slicepilot.controller.service.controller` works on.

    Attributes:
        name: of the node; folders and sockets of its controller are named after it.
        kind: of backend, ``testbed``.
        backend: with a `ShadowActuator`; whoever may write replaces that.
        targets: where each slice's knobs are, in the backend's order.
        quota, egress: how they are set.
        hardware: configuration of the identified hardware that a simulator of this node uses.
    """

    name: str
    kind: str
    backend: LiveBackend
    targets: Sequence[SliceTargets]
    quota: QuotaConfig | None = None
    egress: EgressConfig | None = None
    hardware: str = "testbed"
