"""Which knobs act on a slice's packets, as far as it can be told by looking: what is not there, and what would be moved
in vain. What only traffic tells is measured (`slicepilot.node.check.load`) or tried (`slicepilot.node.check.trial`)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...controller.actuators.slice_knobs import SliceTargets
from ...controller.system.cgroup import CpuGroup
from ...controller.system.kernel_file import ActuatorError
from ...controller.system.net.qdisc import RootQdisc
from ...controller.system.net.rtnetlink import RouteSocket
from ...controller.system.privileges import lacking
from ...controller.telemetry.points import SlicePoints
from ...env.knobs import KnobName
from ..find.interfaces import interfaces
from ..find.known import known
from ..find.locate import Located

CPU_KNOBS: tuple[KnobName, ...] = ("cpu_limit_mcpu", "nice")


@dataclass(frozen=True)
class Authority:
    """Whether a knob acts on a slice's packets, and why that is thought."""

    moves: bool
    why: str


def authority(target: SliceTargets, found: Located, points: SlicePoints) -> dict[KnobName, Authority]:
    """Of all knobs of a slice.

    Args:
        target: where they are.
        found: its UPF.
        points: where it is measured.
    """
    cpu = _cpu(target, found, points.n3.device)
    found_of: dict[KnobName, Authority] = {"cpu_limit_mcpu": cpu, "nice": cpu, "egress_mbps": _egress(target, points)}
    for knob in target.left:
        found_of[knob] = Authority(False, "left alone: the configuration says so")
    return found_of


def can_be_limited(group: Path | None) -> bool:
    """Whether a cgroup has the files of the CPU controller."""
    try:
        return group is not None and CpuGroup.at(group) is not None
    except ActuatorError:
        return False


def without(answers: Mapping[KnobName, Authority]) -> frozenset[KnobName]:
    """Knobs that do not act."""
    return frozenset(knob for knob, one in answers.items() if not one.moves)


def _cpu(target: SliceTargets, found: Located, n3: str) -> Authority:
    if found.cgroup is None:
        return Authority(False, f"{found.process} is in no CPU cgroup of its own")
    if target.cgroup is None:
        return Authority(False, _without_controller(found.cgroup))
    if found.others:
        return Authority(False, f"it shares its cgroup with {found.others[0]}, which a limit would hold back as well")
    kind = known(found.process)
    with contextlib.suppress(OSError):
        if n3 in interfaces(found.netns).xdp:
            return Authority(False, f"XDP on {n3} forwards packets, in softirqs, which no cgroup is charged for")
    if kind is not None and kind.work == "softirq":
        return Authority(False, f"{kind.name} forwards in softirqs, which no cgroup is charged for")
    if kind is not None and kind.work == "polling":
        return Authority(
            False, f"{kind.name} polls: it uses its CPUs whole, and a quota would stop it for part of each period"
        )
    where = f"{found.process} is in {found.cgroup}"
    return Authority(True, where if kind is None else f"{kind.name} forwards in its process; {where}")


def _without_controller(group: Path) -> str:
    above = group.parent / "cgroup.subtree_control"
    return (
        f"{group} has no CPU controller, so that neither limit nor weight can be set; echo +cpu > {above} delegates "
        "it, in each group from the root down. Packets and CPU time are measured, egress rates set, without it"
    )


def _egress(target: SliceTargets, points: SlicePoints) -> Authority:
    device = target.egress_device
    if device is None:
        return Authority(False, "no interface is known by which it sends towards N6")
    if device == points.n3.device:
        return Authority(False, f"{device} is N3 as well: a limit would hold back both directions")
    if points.n6 is None or points.n6.direction == "egress":
        return Authority(
            False,
            f"a shaper on {device} comes after the last point that packets are measured at, so that what it holds back "
            "would not be seen; name the far end of N6 (devices.n6_netns, n6_far)",
        )
    if lacking(["CAP_NET_ADMIN"]):
        return Authority(False, f"this process lacks CAP_NET_ADMIN, which setting a rate on {device} takes")
    try:
        with contextlib.closing(RouteSocket(target.netns)) as route:
            RootQdisc(route, device).check()
    except ActuatorError as error:
        return Authority(False, str(error))
    return Authority(True, f"{device} has its default qdisc, and an HTB can take its place")
