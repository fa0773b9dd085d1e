"""Where the knobs of a slice are, and what sets its egress rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.env.knobs import KnobName

from .cilium.choice import Choice, CiliumPaths, choose
from .egress import ShaperClass

CPU_KNOBS: tuple[KnobName, ...] = ("cpu_limit_mcpu", "nice")


@dataclass(frozen=True)
class SliceTargets:
    """Where one slice's knobs are.

    Attributes:
        name: for messages.
        cgroup: the group of its UPF in the hierarchy of the cpu controller; none leaves its CPU time alone. A link to a
            group that is made when control begins is `slicepilot.controller.system.cgroup_paths.awaited` until then.
        egress_device: device through which it leaves towards N6; none leaves its egress alone.
        netns: path of that device's network namespace; none is this process's own.
        left: knobs that are left alone though they are there: they would not act on its packets, or are not ours.
        sharing: names of all slices that share its UPF, where there are several; the first of them has ``cgroup``, and
            the others none (`SharedCpu`).
        part: its class of the shaper on ``egress_device``, where other slices leave by the same device.
        cilium: where Cilium's bandwidth manager is looked for, whose entry is the egress rate of a pod that it paces;
            None: nowhere, and the slice is shaped where it leaves its UPF.
        within_original: the CPU limit is never set above the original limit.
        ceiling_mcpu: the CPU limit is never set above this value, whatever the original limit.
        moves_pod: the parent group is its pod's, whose limit is raised with its own above the original limit.
        weighs_pod: the parent group is its pod's, whose weight is moved instead of its own, which only ranks containers
            of the same pod.
        request_mcpu: the CPU request that it was deployed with, from which its original weight follows; 0: not known.
    """

    name: str
    cgroup: Path | None
    egress_device: str | None = None
    netns: Path | None = None
    left: frozenset[KnobName] = frozenset()
    sharing: tuple[str, ...] = ()
    part: ShaperClass | None = None
    within_original: bool = False
    cilium: CiliumPaths | None = None
    ceiling_mcpu: float = math.inf
    moves_pod: bool = False
    weighs_pod: bool = False
    request_mcpu: float = 0.0

    @property
    def group(self) -> Path:
        """Its cgroup, of a slice that has a cgroup."""
        assert self.cgroup is not None
        return self.cgroup

    @property
    def fixed(self) -> frozenset[KnobName]:
        """Knobs that are never moved."""
        missing: set[KnobName] = set() if self.cgroup is not None or self.sharing else set(CPU_KNOBS)
        if self.egress_device is None:
            missing.add("egress_mbps")
        return self.left | missing


def pod_of(group: CpuGroup) -> CpuGroup:
    """The group above, wherever a link to it leads; raises ActuatorError."""
    return CpuGroup.at(group.path.resolve().parent)


def paced_by(target: SliceTargets) -> Choice:
    """Whether Cilium paces a slice. A slice that shares its device is not: Cilium has a single rate for a pod."""
    if target.cilium is None or target.egress_device is None or "egress_mbps" in target.left:
        return Choice()
    if target.part is not None:
        return Choice(why=f"other slices use {target.egress_device} too, and Cilium has one rate for a pod")
    return choose(target.egress_device, target.netns, target.cilium)


Pacing = Callable[[SliceTargets], Choice]
