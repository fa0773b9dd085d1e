"""UPFs that run already, as a backend: measured where they are, moved by what they have."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ...configs import ConfigError
from ...controller.actuators.egress import ShaperClass
from ...controller.actuators.quota import QuotaConfig
from ...controller.actuators.shadow import ShadowActuator
from ...controller.actuators.slice_knobs import CPU_KNOBS, SliceTargets
from ...controller.loop.live_backend import ENDLESS, Actuator, LiveBackend, NodeFacts, live_traits
from ...controller.loop.node import Node
from ...controller.telemetry.discover import Devices, Upf, n3_device, n6_device, points_of, points_of_service
from ...controller.telemetry.layout import SHAPER_FIRST
from ...controller.telemetry.points import SlicePoints
from ...controller.telemetry.source import KernelSource
from ...env.encoding import UPLINK_RANGE_MBPS
from ...env.knobs import EGRESS, KNOB_FIELDS, KnobName
from ...env.telemetry import Telemetry
from ..authority.authority import Authority, authority, can_be_limited, without
from ..authority.binding import Binding
from ..authority.softirqs import in_softirqs
from ..authority.surroundings import surroundings
from ..config.spec import NodeSlice, NodeSpec
from ..find.follow import Follower
from ..find.links import UpfLinks
from ..find.locate import Finder, Located
from ..find.permitted import check_permitted
from .learning import POLL_S, NodeLearning
from .own_groups import NodeHousing, OwnGroups

# For policies, which reckon with it: the most that they are shown.
UNKNOWN_UPLINK_MBPS = UPLINK_RANGE_MBPS[1]


class NodeBackend(LiveBackend):
    """The node's UPFs under whatever load they have; knobs are not written until it gets another actuator.

    UPFs that restart, move to another cgroup or are made anew are found again within about a second.

    Args:
        spec: which UPFs.
        control_period_s: of the loop.
        num_steps: control periods of one run.

    Attributes:
        found: where each slice's UPF was found; around: what binds its CPU time beside its own cgroup.
        source: what measures.
        learning: which of their packets are whose, where sessions tell.
        authority: which knobs act on which slice's packets; the others are not moved.
        n3: each UPF's own interface for N3, wherever it is measured.

    Raises:
        ConfigError: a UPF is not found, or it is not clear which process or interface is meant.
        ProbeError, ActuatorError: what is needed to measure is missing.
    """

    def __init__(self, spec: NodeSpec, control_period_s: float, num_steps: int = ENDLESS) -> None:
        self.spec = spec
        self.authority: dict[str, dict[KnobName, Authority]] = {}
        self.n3: dict[str, str] = {}
        with contextlib.ExitStack() as undo:
            self.found = found = find_all(spec)
            self.around = {name: surroundings(one.process.pid, one.cgroup) for name, one in found.items()}
            self._links = UpfLinks()
            undo.callback(self._links.close)
            for name, one in found.items():
                self._links.lead_to(name, one.netns, one.cgroup)
            points, targets = self._places(found)
            self._own = self._own_groups(found)
            for name, one in found.items():
                self._links.lead_to(name, one.netns, self._own.group_of(name, one))
            self.source = source = KernelSource(points, uplink_mbps=spec.uplink_mbps or math.inf)
            undo.callback(source.close)
            self.learning = NodeLearning(points, _families(found), found, source.packets.sharing)
            undo.callback(self.learning.close)
            self.targets = _parts(targets, source.packets.object.program("shaper_class").fd)
            actuator: Actuator = ShadowActuator(self.targets)
            undo.callback(actuator.close)
            self._binding = Binding({one.name: one.upf_threads for one in spec.slices}, self.around)
            self._follower = Follower({one.name: one.selector for one in spec.slices}, found, self._links, self._own)
            moves = np.asarray([[[knob not in one.fixed] for one in self.targets] for knob in KNOB_FIELDS], np.bool_)
            slices = spec.promised_within({name: one.usable for name, one in self.around.items()})
            facts = NodeFacts(
                control_period_s,
                spec.uplink_mbps or UNKNOWN_UPLINK_MBPS,
                float(len(self._binding.cpus)) if spec.cpus is None else spec.cpus,
                num_steps,
                traits=live_traits(slices, spec.quota_period_ms, spec.n3_buffer_packets, bool(moves[EGRESS].any())),
                moves=None if moves.all() else moves,
                sharing=tuple(tuple(map(list(found).index, names)) for names in _families(found) if len(names) > 1),
            )
            super().__init__(slices, source, actuator, [target.cgroup for target in self.targets], facts)
            source.sched.usable = self._binding.cpus
            if self.learning:
                self.tasks = ((self.learning.poll, POLL_S),)
            undo.pop_all()

    def observe(self) -> Telemetry:
        """As `LiveBackend.observe`; who takes steps himself has no loop that polls."""
        self.learning.poll()
        return super().observe()

    def check(self) -> list[str]:
        """As `LiveBackend.check`; and which UPFs have gone and were not found again, and what binds them more than at
        the start. ``context`` says then how many CPUs each can use now, and unless `spec` does, all of them."""
        gone, found = self._follower.look(), self._follower.found
        bound = self._binding.look(found, self.context.threads)
        self.source.sched.usable = self._binding.cpus
        if self.spec.cpus is None:
            self.context.logical_cpus[:] = len(self._binding.cpus)
        return [*gone, *bound, *self.learning.check(found), *super().check()]

    @property
    def housing(self) -> NodeHousing | None:
        """What gives UPFs groups of their own in mode ``live``; None where none is to get one."""
        return NodeHousing(self._own, self._follower, self.source.sched.refresh) if self._own else None

    @property
    def hardware(self) -> str:
        """Configuration of the identified hardware that a simulator of this node uses."""
        return self.spec.hardware

    def close(self) -> None:
        """Restore the knobs and release everything; more than once does nothing."""
        self._follower.close()
        try:
            super().close()
        finally:
            self._links.close()
            self.learning.close()

    def _places(self, found: Mapping[str, Located]) -> tuple[list[SlicePoints], list[SliceTargets]]:
        """Where slices are measured, and where their knobs are."""
        points, targets = [], []
        families = {name: family for family in _families(found) for name in family}
        same_netns, allowed = firsts(found), {one.name for one in self.spec.slices if one.own_cgroup}
        for one in self.spec.slices:
            family = families[one.name]
            netns = self._links.netns(same_netns[one.name])
            label = f"{self.spec.name}-{family[0]}" if allowed.issuperset(family) else None
            cgroup = self._links.cgroup(family[0]) if found[one.name].cgroup is not None or label is not None else None
            upf = Upf(one.name, netns, cgroup)
            point = measured_at(one, upf)
            limited = cgroup if label is not None or can_be_limited(found[one.name].cgroup) else None
            target = SliceTargets(one.name, limited, _n6_of(one, upf), netns, frozenset(one.leave))
            self.n3[one.name] = n3 = _n3_of(one, upf)
            self.authority[one.name] = answers = authority(target, found[one.name], point, n3, label)
            points.append(point)
            targets.append(target)
        together = beside_services(points, targets)
        for index, target in enumerate(targets):
            answers = self.authority[target.name]
            if target.name in together and answers["egress_mbps"].moves:
                answers["egress_mbps"] = Authority(False, together[target.name])
            targets[index] = dataclasses.replace(target, left=without(answers))
        self._movable = {name: family[0] for name, family in families.items() if self._may_move(family, allowed)}
        for index, target in enumerate(targets):
            if found[target.name].cgroup is None and target.name not in self._movable:
                points[index] = dataclasses.replace(points[index], cgroup=None)
                targets[index] = dataclasses.replace(target, cgroup=None)
        return points, [_of_family(target, families[target.name], targets) for target in targets]

    def _may_move(self, family: Sequence[str], allowed: set[str]) -> bool:
        """Whether slices of one UPF all allow that it gets a group, and would have something of it."""
        return all(name in allowed and _acts(self.authority[name]) for name in family)

    def _own_groups(self, found: Mapping[str, Located]) -> OwnGroups:
        upfs = {one.name for one in self.spec.slices if one.upf is not None} & set(self._movable.values())
        polled = {first: self.n3[first] for first in upfs if in_softirqs(found[first], self.n3[first])}
        return OwnGroups(self.spec.name, self._movable, polled)


def _acts(answers: Mapping[KnobName, Authority]) -> bool:
    return any(answers[knob].moves for knob in CPU_KNOBS)


def _families(found: Mapping[str, Located]) -> list[tuple[str, ...]]:
    """Slices by UPF, in order."""
    families: dict[int, list[str]] = {}
    for name, one in found.items():
        families.setdefault(one.process.pid, []).append(name)
    return [tuple(names) for names in families.values()]


def firsts(found: Mapping[str, Located]) -> dict[str, str]:
    """By slice the first one in the same network namespace: a namespace goes by one path, for points to be the same."""
    known: dict[object, str] = {}
    return {name: known.setdefault(one.process.netns, name) for name, one in found.items()}


def _of_family(target: SliceTargets, family: tuple[str, ...], targets: Sequence[SliceTargets]) -> SliceTargets:
    """Of slices that have one UPF the first has its cgroup, and what one of them leaves alone there all do."""
    if len(family) == 1 or target.cgroup is None:
        return target
    left = {knob for one in targets if one.name in family for knob in one.left if knob in CPU_KNOBS}
    return dataclasses.replace(
        target,
        sharing=family,
        cgroup=target.cgroup if target.name == family[0] else None,
        left=target.left | left,
    )


def beside_services(points: Sequence[SlicePoints], targets: Sequence[SliceTargets]) -> dict[str, str]:
    """Slices whose interface others send by as well, services among them: why no egress rate is their own."""
    users: dict[tuple[Path | None, str | None], list[int]] = {}
    for index, one in enumerate(targets):
        users.setdefault((one.netns, one.egress_device), []).append(index)
    return {
        targets[index].name: f"{device} is that of other slices too, and a shaper does not tell answers apart"
        for (_, device), indices in users.items()
        if device is not None and len(indices) > 1 and any(points[one].ports is not None for one in indices)
        for index in indices
    }


def _parts(targets: Sequence[SliceTargets], classifier: int) -> list[SliceTargets]:
    """The same, with a class of the shaper for each slice that leaves by the same device as others."""
    places = [(one.netns, one.egress_device) for one in targets if "egress_mbps" not in one.left]
    return [
        dataclasses.replace(one, part=ShaperClass(SHAPER_FIRST + index, classifier))
        if one.egress_device is not None and places.count((one.netns, one.egress_device)) > 1
        else one
        for index, one in enumerate(targets)
    ]


def measured_at(one: NodeSlice, upf: Upf) -> SlicePoints:
    """Where a slice's packets are measured; raises as `points_of` and `points_of_service`."""
    if (at := one.listens) is not None:
        return points_of_service(upf, at.device, at.far_netns, at.selected, f"slices.{one.name}.listens.")
    names = one.devices
    far = names.n6 if names.n6_netns is None else names.n6_far
    devices = Devices(names.n3, names.tun, far, names.n6_netns, names.n4, names.n6, names.n3_netns, names.n3_far)
    points = points_of(upf, devices, f"slices.{one.name}.devices.")
    return dataclasses.replace(points, traffic=None if one.traffic is None else one.traffic.selected(one.s_nssai))


def _n3_of(one: NodeSlice, upf: Upf) -> str:
    if one.listens is not None:
        return one.listens.device
    return n3_device(upf, one.devices.n3, f"slices.{one.name}.devices.")


def _n6_of(one: NodeSlice, upf: Upf) -> str | None:
    if one.listens is not None:
        return one.listens.device
    return n6_device(upf, one.devices.n6, f"slices.{one.name}.devices.")


def find_all(spec: NodeSpec) -> dict[str, Located]:
    """Every slice's UPF, in order.

    Raises:
        FailureError: this process may not look.
        ConfigError: one is not there, or not told from others; or two UPFs are in the same cgroup.
    """
    check_permitted()
    finder = Finder()
    selectors = {one.name: one.selector for one in spec.slices}
    found = {name: finder.find(name, selector) for name, selector in selectors.items()}
    movable = {one.name for one in spec.slices if one.own_cgroup}
    groups: dict[Path, str] = {}
    for name, one in found.items():
        if one.cgroup is None:
            continue
        other = groups.setdefault(one.cgroup, name)
        if found[other].process.pid != one.process.pid and not movable.issuperset({name, other}):
            raise ConfigError(
                f"slices.{name}.{selectors[name].role}: the same cgroup as that of {other}; accepted: each UPF and "
                "service in one of its own, or own_cgroup: true in both"
            )
    return found


def open_node(name: str, control_period_s: float, scenario: str | None) -> Node:
    """A node to control, by name or file of its configuration.

    Raises:
        ConfigError: see `NodeBackend`; or a scenario, whose loads nobody here could play.
    """
    if scenario is not None:
        raise ConfigError(f"scenario = {scenario!r}: accepted: none with a node, whose traffic is what there is")
    return node_of(NodeBackend(NodeSpec.from_yaml(name), control_period_s))


def node_of(backend: NodeBackend) -> Node:
    """What a controller works on."""
    spec = backend.spec
    quota = QuotaConfig(period_us=round(1e3 * spec.quota_period_ms))
    return Node(spec.name, "node", backend, backend.targets, quota, hardware=spec.hardware, housing=backend.housing)
