"""All that is known of a slice's UPF: is it measured, and which knobs act on its packets?"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slicepilot.controller.actuators.bandwidth import limit_mcpu
from slicepilot.controller.actuators.cilium.choice import CiliumPaths, choose
from slicepilot.controller.actuators.slice_knobs import CPU_KNOBS, SliceTargets
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.cgroup_paths import awaited
from slicepilot.controller.telemetry.layout import AT_N6
from slicepilot.controller.telemetry.n4.learning import Learned
from slicepilot.controller.telemetry.packets import PacketProbe
from slicepilot.controller.telemetry.points import NetPoint, SlicePoints
from slicepilot.env.knobs import KnobName
from slicepilot.node.authority.cpu_group import notes_on
from slicepilot.node.authority.pacing import UNSEEN
from slicepilot.node.authority.rivals import rivals_of
from slicepilot.node.authority.softirqs import in_softirqs, proposal
from slicepilot.node.live.backend import NodeBackend

from .load import LEAST_PACKETS, Load, watch
from .trial import Effect

# Of packets that left, those that came by the queue; a shaper that holds back less than half is not the slice's.
LEAST_SHARE = 0.5
# Of a service's requests, those that were not timed by themselves; above that a note says so.
MOST_JOINED = 0.05


SEND, AGAIN = "send traffic and repeat", "repeat, with more or steadier traffic"
LEAVE = "nothing: it is not moved by what it would not act with; `leave` in its slice says so for good"


@dataclass(frozen=True)
class Answer:
    """Whether a knob acts on a slice's packets; None: not known yet.

    Attributes:
        acts: the verdict; why: evidence and reason; remedy: what to do, empty for nothing.
    """

    acts: bool | None
    why: str
    remedy: str = ""

    @property
    def verdict(self) -> str:
        """The verdict as it is printed and in JSON."""
        return "not known yet" if self.acts is None else "acts" if self.acts else "does not act"


@dataclass(frozen=True)
class SliceReport:
    """One slice.

    Attributes:
        name: of the slice; process: its UPF.
        load: what passed while it was watched.
        knobs: whether each acts.
        notes: for the user, before control starts.
        learned: from its sessions that were set up during the check; None for a slice that learns from none.
        tried: the effect of moving each knob, with ``--try``.
    """

    name: str
    process: str
    load: Load
    knobs: dict[KnobName, Answer]
    notes: tuple[str, ...]
    learned: Learned | None = None
    tried: dict[KnobName, Effect] = field(default_factory=dict)

    def answer(self, knob: KnobName) -> Answer:
        """Whether a knob acts: what was tried counts for more than what was seen, where there was enough to try."""
        seen, effect = self.knobs[knob], self.tried.get(knob)
        if effect is None:
            return seen
        if effect.acts is not None:
            return Answer(effect.acts, str(effect), "" if effect.acts else LEAVE)
        if effect.tried and seen.acts and knob != "nice":
            return Answer(None, f"{effect}; {seen.why}", AGAIN)
        return dataclasses.replace(seen, why=f"{seen.why}; {effect}")


class Passed(NamedTuple):
    """Packets of a slice that have come to the queue of an interface."""

    device: str
    packets: int

    def share_of(self, left: int) -> str:
        """How many of the packets that left they are; the queue is watched for longer, so that they may be more."""
        if self.packets >= left:
            return f"all {left} packets that left came by the queue of {self.device}"
        return f"of {left} packets that left, {self.packets} came by the queue of {self.device}"


@contextlib.contextmanager
def queues(backend: NodeBackend) -> Iterator[Mapping[str, Passed]]:
    """Packets that came to a slice's queue, for slices that are shaped before their last point; filled at the end.

    An egress hook comes right before the queue (net/core/dev.c, __dev_queue_xmit), so it sees the same packets.
    """
    passed: dict[str, Passed] = {}
    pairs = zip(backend.source.packets.points, backend.targets, strict=True)
    points = [point for point in (_at_queue(*pair) for pair in pairs) if point is not None]
    if not points:
        yield passed
        return
    names = backend.slices.names
    indices = {names.index(item.name): index for index, item in enumerate(points)}
    # The second probe sees no PFCP, so it gets the sessions that the first has learned.
    with PacketProbe(points) as probe, backend.learning.also_for(probe.sharing, indices):
        yield passed
        for index, item in enumerate(points):
            assert item.n6 is not None
            passed[item.name] = Passed(item.n6.device, int(probe.slices["exit"][index, AT_N6]["packets"]))


def _at_queue(points: SlicePoints, target: SliceTargets) -> SlicePoints | None:
    if target.egress_device is None or target.netns is None or points.n6 is None or points.n6.direction == "egress":
        return None
    return dataclasses.replace(points, n6=NetPoint(target.netns, target.egress_device, "egress"), tun=None, n4=None)


def report(backend: NodeBackend, seconds: float) -> list[SliceReport]:
    """Observe for so many seconds; moves nothing."""
    strangers = -_nobodys(backend)
    with queues(backend) as passed:
        loads = watch(backend.source, seconds, backend.learning.poll)
        # Before the queues' programs come off: what comes and goes looks like others'.
        hidden = backend.source.check_without_thread()
    strangers += _nobodys(backend)
    names = backend.slices.names
    reports = [_slice(backend, name, load, passed, strangers) for name, load in zip(names, loads, strict=True)]
    return [dataclasses.replace(item, notes=(*_hidden(backend, item.name, hidden), *item.notes)) for item in reports]


def _hidden(backend: NodeBackend, name: str, lost: Sequence[str]) -> list[str]:
    """The reports of unmeasured packets that are about a slice's points."""
    points = backend.source.packets.points[backend.slices.names.index(name)]
    at = tuple(f"{point}: " for point in (points.n3, points.tun, points.n6) if point is not None)
    return [text for text in lost if text.startswith(at)]


def _nobodys(backend: NodeBackend) -> int:
    """Packets that came by an N3 that slices share and were of no slice's tunnel or pool."""
    return int(backend.source.packets.slices[-1]["n3"]["packets"])


def _slice(backend: NodeBackend, name: str, load: Load, passed: Mapping[str, Passed], strangers: int) -> SliceReport:
    around, located = backend.around[name], backend.located[name]
    notes = [] if load.left else [str(load)]
    learned = backend.learning.learned(name)
    if learned is not None and not learned.ever:
        notes.append(_unlearned(load, strangers))
    family = next((group for group in backend.context.sharing if backend.slices.names.index(name) in group), ())
    if family:
        others = ", ".join(backend.slices.names[index] for index in family if backend.slices.names[index] != name)
        notes.append(f"one UPF with {others}: its CPU limit is the sum of theirs, and applies to all of them together")
    if around.limited_by is not None:
        notes.append(f"{around.limited_by} limits it to {around.limit_mcpu:g} mCPU, whatever its own limit is")
    if around.cpus < backend.context.logical_cpus.item():
        notes.append(f"it may use {around.cpus} of the CPUs only")
    notes += notes_on(located.process.pid, located.cgroup)
    notes += _limits(backend, name)
    notes += _unseen(backend, name)
    notes += [f"its cgroup is written by others as well: {writer}" for writer in around.writers]
    answers: dict[KnobName, Answer] = {}
    for knob, entry in backend.authority[name].items():
        answers[knob] = Answer(entry.moves, entry.why, entry.remedy)
    for knob in CPU_KNOBS:
        answers[knob] = _by_load(answers[knob], load)
    answers["nice"] = _by_rivals(answers["nice"], backend, name)
    if name in passed:
        answers["egress_mbps"] = _by_queue(answers["egress_mbps"], load, passed[name])
    if load.joined is not None:
        notes += _untimed(load)
    elif in_softirqs(located, backend.n3[name]) or load.elsewhere:
        notes += filter(None, [proposal(located, backend.n3[name])])
    return SliceReport(name, str(located.process), load, answers, tuple(notes), learned)


def _unlearned(load: Load, strangers: int) -> str:
    """A note on a slice that learns from sessions and has seen none."""
    text = "no session of it was set up meanwhile: its packets count from the next session on, or by ue_pools"
    if load.packets or not strangers:
        return text
    return f"{strangers} packets came by the N3 that it shares, of sessions that are not known; {text}"


def _limits(backend: NodeBackend, name: str) -> list[str]:
    """A CPU limit that is there already, and limits that the slice's bounds allow and the kernel does not."""
    index, notes = backend.slices.names.index(name), []
    target, least = backend.targets[index], backend.spec.least_limit_mcpu
    if target.cgroup is None or awaited(target.cgroup) or "cpu_limit_mcpu" in target.fixed:
        return []
    if (original := limit_mcpu(CpuGroup.at(target.cgroup))) < math.inf:
        notes.append(f"its original CPU limit is {original:g} mCPU: control changes it, and restores it at the end")
    if backend.slices.bound("cpu_limit_mcpu", 0)[index, 0] < least:
        period = f"{backend.spec.quota_period_ms:g} ms"
        notes.append(f"CPU limits below {least:g} mCPU are set as {least:g}: the least quota is 1 ms, here in {period}")
    return notes


def _unseen(backend: NodeBackend, name: str) -> list[str]:
    """A note on a rate of Cilium that is not the knob because its effect would not be measured."""
    target = backend.targets[backend.slices.names.index(name)]
    device = target.egress_device
    if target.cilium is not None or device is None or "egress_mbps" in target.left:
        return []
    choice = choose(device, target.netns, CiliumPaths())
    return (
        [] if choice.throttle is None else [f"{choice.why}; a shaper is its knob, since {UNSEEN} (egress_by: cilium)"]
    )


def _untimed(load: Load) -> list[str]:
    assert load.joined is not None
    if load.joined <= MOST_JOINED * load.packets:
        return []
    text = f"of {load.packets} packets of requests, {load.joined} came before the answer to an earlier request of their"
    return [f"{text} conversation: the delay is that of the first of several requests, up to the first answer"]


def _by_queue(entry: Answer, load: Load, passed: Passed) -> Answer:
    """A verdict on egress in the light of the packets in its queue."""
    if load.left < LEAST_PACKETS:
        return dataclasses.replace(entry, remedy=SEND) if entry.acts else entry
    seen = passed.share_of(load.left)
    if entry.acts and passed.packets < LEAST_SHARE * load.left:
        return Answer(False, f"{seen}: the others go past it", LEAVE)
    return dataclasses.replace(entry, why=f"{entry.why}: {seen}")


def _by_load(entry: Answer, load: Load) -> Answer:
    """A verdict on a CPU knob in the light of what was measured."""
    if not entry.acts or load.cpu_use_mcpu is None:
        return entry
    if load.elsewhere:
        return Answer(
            False,
            f"its process uses {load.cpu_us_per_packet:.2f} us of CPU time a packet: its packets are handled "
            "elsewhere, in softirqs, which no cgroup is charged for",
            "see the note on softirqs",
        )
    if load.cpu_us_per_packet is not None:
        used = f"its process uses {load.cpu_us_per_packet:.1f} us of CPU time a packet"
        return dataclasses.replace(entry, why=f"{entry.why}; {used}")
    return dataclasses.replace(entry, why=f"{entry.why}; not measured, for want of traffic", remedy=SEND)


def _by_rivals(entry: Answer, backend: NodeBackend, name: str) -> Answer:
    """A verdict on a weight in the light of what it is weighed against."""
    group = backend.targets[backend.slices.names.index(name)].cgroup
    if not entry.acts or group is None or awaited(group):
        return entry
    if backend.targets[backend.slices.names.index(name)].weighs_pod:
        group = group.resolve().parent
    rivals = rivals_of(group, backend.around[name].allowed)
    if rivals:
        return dataclasses.replace(entry, why=f"{entry.why}; it is weighed against {rivals} beside it")
    text = f"{entry.why}; nothing that may use its CPUs is beside it in {group.resolve().parent} to be weighed against"
    return Answer(None, text, "repeat when others run there, or give the groups above weights")
