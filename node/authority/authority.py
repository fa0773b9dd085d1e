"""Which knobs act on a slice's packets, by inspection: which knobs are missing, and which would have no effect.
Effects that only traffic shows are measured (`slicepilot.node.check.load`) or tried (`slicepilot.node.check.trial`)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slicepilot.controller.actuators.targets import SliceTargets, paced_by
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net.qdisc import RootQdisc
from slicepilot.controller.system.net.rtnetlink import RouteSocket
from slicepilot.controller.system.privileges import lacking
from slicepilot.controller.system.processes import real_time_share
from slicepilot.controller.telemetry.points import SlicePoints
from slicepilot.env.knobs import KnobName
from slicepilot.env.slices import NICE_MAX, NICE_MIN
from slicepilot.node.find.known import known
from slicepilot.node.find.locate import Located

from .cpu_group import Finding, group_path, needs_own_group, of_weight
from .pacing import UNSEEN, seen
from .softirqs import forwards_in_xdp, in_softirqs, named, outside, threads_of

OWN_GROUP = "own_cgroup: true"
WOULD_MAKE = "set `own_cgroup: true` in its slices, and live mode makes one for it"
WOULD_MOVE = "set `own_cgroup: true` in its slices, and live mode moves them there"


@dataclass(frozen=True)
class Authority:
    """Whether a knob acts on a slice's packets, the evidence, and a remedy (empty if there is none)."""

    moves: bool
    why: str
    remedy: str = ""


def authority(
    target: SliceTargets,
    located: Located,
    points: SlicePoints,
    n3: str | None = None,
    own_group: str | None = None,
    nice_range: tuple[int, int] = (NICE_MIN, NICE_MAX),
) -> dict[KnobName, Authority]:
    """The authority of all knobs of a slice.

    Args:
        target: where the knobs are.
        located: the slice's UPF.
        points: where the slice is measured.
        n3: the UPF's own interface for N3, where it is measured elsewhere.
        own_group: name, after our prefix, of the group that the UPF may get; None: it may not get a group.
        nice_range: bounds of its nice level.
    """
    n3 = n3 or points.n3.device
    limit, nice = _cpu(target, located, n3, own_group, points.ports is not None)
    if nice.moves and located.cgroup is not None and not needs_own_group(located):
        nice = _with_finding(nice, of_weight(CpuGroup.at(located.cgroup), target.weighs_pod, nice_range))
    egress = _egress(target, located, points, n3)
    answers: dict[KnobName, Authority] = {"cpu_limit_mcpu": limit, "nice": nice, "egress_mbps": egress}
    for knob in target.left:
        answers[knob] = Authority(False, "left alone: the configuration says so")
    return answers


def _with_finding(entry: Authority, finding: Finding) -> Authority:
    """A verdict changed by a finding."""
    if not entry.moves or not finding.text:
        return entry
    return dataclasses.replace(
        entry, moves=finding.moves, why=f"{entry.why}; {finding.text}" if finding.moves else finding.text
    )


def can_be_limited(group: Path | None) -> bool:
    """Whether a cgroup has the files of the CPU controller."""
    try:
        return group is not None and CpuGroup.at(group) is not None
    except ActuatorError:
        return False


def without(answers: Mapping[KnobName, Authority]) -> frozenset[KnobName]:
    """Knobs that do not act."""
    return frozenset(knob for knob, answer in answers.items() if not answer.moves)


def _cpu(
    target: SliceTargets, located: Located, n3: str, own: str | None, service: bool
) -> tuple[Authority, Authority]:
    """The authority of the CPU limit and of the nice level, which is the group's weight."""
    answer = _group(target, located, own)
    if answer.moves and not service and (what := in_softirqs(located, n3)) is not None:
        threads = threads_of(located, n3)
        if not threads:
            answer = Authority(False, f"{what}, in softirqs, which no cgroup is charged for")
        elif outside(located, threads) and own is None:
            answer = Authority(
                False, f"{what}, in {named(threads)}, which are not in its cgroup; {WOULD_MOVE}", OWN_GROUP
            )
        else:
            # A quota stops tasks on their way back to user space, where kernel threads never are (kernel/sched/fair.c,
            # task_throttle_setup_work). Before Linux 6.18 it would stop them with packets in their hands.
            why = f"{what}, in {named(threads)}: from Linux 6.18 on a CPU limit does not stop kernel threads"
            limit = Authority(False, why)
            where = (
                "which live mode will move to its cgroup, and back at the end"
                if outside(located, threads)
                else "which are in its cgroup"
            )
            return limit, dataclasses.replace(answer, why=f"{what}, in {named(threads)}, {where}")
    if answer.moves and target.weighs_pod:
        return answer, dataclasses.replace(answer, why=f"{answer.why}; the weight is that of its pod, the group above")
    return answer, answer


def _group(target: SliceTargets, located: Located, own: str | None) -> Authority:
    """The authority of the CPU knobs of a process in its group."""
    kind = known(located.process)
    polls = kind is not None and kind.work == "polling"
    in_real_time, threads = real_time_share(located.process.pid)
    if threads and in_real_time == threads:
        remedy = f"chrt --all-tasks --other --pid 0 {located.process.pid}"
        return Authority(
            False,
            f"{located.process} runs in real time (SCHED_FIFO, SCHED_RR or SCHED_DEADLINE), where neither limits nor "
            f"weights hold it back; {remedy} would change that",
            remedy,
        )
    if needs_own_group(located):
        shared = located.others[0] if located.others else None
        lack = (
            f"{located.process} is not in a CPU cgroup of its own"
            if shared is None
            else f"it shares its cgroup with {shared}, which a limit would hold back as well"
        )
        if own is None or polls:
            return Authority(False, lack) if polls else Authority(False, f"{lack}; {WOULD_MAKE}", OWN_GROUP)
        try:
            path = group_path(own, located.cgroup)
        except ActuatorError as error:
            return Authority(False, f"{lack}, and cannot get a group: {error}")
        return Authority(True, f"live mode will move the threads of {located.process} to {path}, and back at the end")
    assert located.cgroup is not None
    if target.cgroup is None:
        return _unlimited(located.cgroup)
    if kind is not None and polls:
        return Authority(
            False, f"{kind.name} polls: it uses its CPUs whole, and a quota would stop it for part of each period"
        )
    where = f"{located.process} is in {located.cgroup}"
    if in_real_time:
        where = f"{where}; {in_real_time} of its {threads} threads run in real time, which nothing of this holds back"
    return Authority(True, where if kind is None else f"{kind.name} forwards in its process; {where}")


def _unlimited(group: Path) -> Authority:
    """The authority over a group that `can_be_limited` denies."""
    try:
        CpuGroup.at(group)
    except ActuatorError as error:
        if (group / "cpu.weight").exists():
            return Authority(False, str(error))
    remedy = f"echo +cpu > {group.parent / 'cgroup.subtree_control'}"
    why = (
        f"{group} has no CPU controller, so that neither limit nor weight can be set; {remedy} delegates "
        "it, in each group from the root down. Packets and CPU time are measured, egress rates set, without it"
    )
    return Authority(False, why, remedy)


def _egress(target: SliceTargets, located: Located, points: SlicePoints, n3: str) -> Authority:
    device = target.egress_device
    if device is None:
        return Authority(False, "no interface is known by which it sends towards N6", "name it: devices.n6")
    service = points.ports is not None
    if device == n3 and not service:
        return Authority(False, f"{device} is N3 as well: a limit would hold back both directions")
    if not service and forwards_in_xdp(located, n3):
        return Authority(False, f"XDP on {n3} sends packets on by itself, past the queue of {device}")
    choice = paced_by(target)
    if choice.throttle is not None and not lacking(["CAP_SYS_ADMIN"]):
        return Authority(True, choice.why if seen(points, target.netns) else f"{choice.why}; {UNSEEN}")
    if points.n6 is None or points.n6.direction == "egress":
        remedy = "name the far end: " + ("listens.far_netns" if service else "of N6 (devices.n6_netns, n6_far)")
        return Authority(
            False,
            f"a shaper on {device} comes after the last point that packets are measured at, so that what it holds back "
            f"would not be seen; {remedy}",
            remedy,
        )
    if lacking(["CAP_NET_ADMIN"]):
        return Authority(False, f"this process lacks CAP_NET_ADMIN, which setting a rate on {device} takes")
    try:
        with contextlib.closing(RouteSocket(target.netns)) as route:
            RootQdisc(route, device).check()
    except ActuatorError as error:
        return Authority(False, str(error))
    text = f"; {choice.why}" if choice.why else ""
    return Authority(True, f"{device} has its default qdisc, which an HTB can replace{text}")
