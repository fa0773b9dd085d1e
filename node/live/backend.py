"""UPFs that run already, as a backend: measured where they are, moved by what they have."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.controller.actuators.shadow import ShadowActuator
from slicepilot.controller.loop.live_backend import (
    ENDLESS,
    Actuator,
    LiveBackend,
    TelemetrySource,
    live_context,
    live_traits,
)
from slicepilot.controller.loop.node import Node
from slicepilot.controller.system.background import LOOP_WAIT_S
from slicepilot.controller.system.cgroup_paths import NOT_YET
from slicepilot.controller.telemetry.points import SlicePoints
from slicepilot.controller.telemetry.prometheus.source import PrometheusSource
from slicepilot.controller.telemetry.source import KernelSource
from slicepilot.env.encoding import UPLINK_RANGE_MBPS
from slicepilot.env.knobs import EGRESS, KNOB_FIELDS, KnobName
from slicepilot.env.telemetry import Telemetry
from slicepilot.node.authority.binding import Binding, surroundings
from slicepilot.node.authority.softirqs import in_softirqs
from slicepilot.node.config.spec import NodeSpec
from slicepilot.node.find.draft import marks_left
from slicepilot.node.find.follow import Follower
from slicepilot.node.find.links import UpfLinks

from .learning import POLL_S, NodeLearning
from .locations import SliceLocation, check_apart, in_parts, locations_of, moving_pods
from .own_groups import NodeHousing, OwnGroups
from .points import completed, families_of, find_all

# For policies: the most that they are shown.
UNKNOWN_UPLINK_MBPS = UPLINK_RANGE_MBPS[1]
OLDEST_SCRAPES = 2
"""Age of a figure at most, in scrape intervals: it is up to one old when it is scraped, and up to two when queried."""


class NodeBackend(LiveBackend):
    """The node's UPFs under whatever load they have; knobs are not written until it gets another actuator.

    UPFs that restart, move to another cgroup or are recreated are located again within about a second.

    Args:
        spec: which UPFs.
        control_period_s: of the loop.
        num_steps: control periods of one run.

    Attributes:
        located: location of each slice's UPF; around: what limits its CPU time beside its own cgroup.
        authority: which knobs act on which slice's packets; the others are not moved.
        n3: each UPF's own interface for N3, wherever it is measured.
        own_groups: slices whose UPF had no group of its own at the start, and may get one.

    Raises:
        ConfigError: a UPF is not found, or it is not clear which process or interface is meant.
        ProbeError, ActuatorError: what is needed to measure is missing.
    """

    def __init__(self, spec: NodeSpec, control_period_s: float, num_steps: int = ENDLESS) -> None:
        with contextlib.ExitStack() as undo:
            self.located = located = find_all(spec)
            self.spec = spec = completed(spec, located)
            families = families_of(located)
            moving = moving_pods(spec, located)
            self.around = {
                name: surroundings(item.process.pid, item.cgroup, name in moving) for name, item in located.items()
            }
            self._links = UpfLinks()
            undo.callback(self._links.close)
            for name, item in located.items():
                self._links.lead_to(name, item.netns, item.cgroup)
            locations = locations_of(spec, located, self._links)
            self.authority = {name: item.answers for name, item in locations.items()}
            self.n3 = {name: item.n3 for name, item in locations.items()}
            self._own = self._own_groups(locations)
            groups = {name: self._own.group_of(name, item) for name, item in located.items()}
            self.own_groups = tuple(name for name, group in groups.items() if group == NOT_YET)
            for name, item in located.items():
                self._links.lead_to(name, item.netns, groups[name])
            targets = [item.targets for item in locations.values()]
            self._probe: KernelSource | None = None
            self._learning: NodeLearning | None = None
            source: TelemetrySource
            oldest_s = 0.0
            if spec.prometheus is None:
                points = [item.points for item in locations.values()]
                self._probe, self._learning = self._probed(points, families, undo)
                source = self._probe
                self.targets = in_parts(targets, self._probe.packets.object.program("shaper_class").fd)
            else:
                check_apart(targets, families)
                source = PrometheusSource(
                    spec.prometheus, spec.promised.names, control_period_s, spec.uplink_mbps or math.inf
                )
                undo.callback(source.close)
                self.targets, oldest_s = targets, OLDEST_SCRAPES * source.queries.scrape_interval_s
            actuator: Actuator = ShadowActuator(self.targets)
            undo.callback(actuator.close)
            self._binding = Binding({item.name: item.upf_threads for item in spec.slices}, self.around, moving)
            self._follower = Follower(
                {item.name: item.selector for item in spec.slices}, located, self._links, self._own
            )
            moves = np.asarray([[[knob not in item.fixed] for item in self.targets] for knob in KNOB_FIELDS], np.bool_)
            slices = spec.promised_within({name: item.usable for name, item in self.around.items()})
            context = replace(
                live_context(
                    slices,
                    control_period_s,
                    spec.uplink_mbps or UNKNOWN_UPLINK_MBPS,
                    float(len(self._binding.cpus)) if spec.cpus is None else spec.cpus,
                    num_steps,
                    live_traits(slices, spec.quota_period_ms, spec.n3_buffer_packets, bool(moves[EGRESS].any())),
                ),
                moves=None if moves.all() else moves,
                sharing=tuple(tuple(map(list(located).index, names)) for names in families if len(names) > 1),
                oldest_s=oldest_s,
            )
            cgroups = None if self._probe is None else [target.cgroup for target in self.targets]
            super().__init__(slices, source, actuator, cgroups, context, control_period_s)
            if self._probe is not None:
                self._probe.sched.usable = self._binding.cpus
            if self._learning:
                self.tasks = (*self.tasks, (self._learning.poll, POLL_S))
            undo.pop_all()

    @property
    def source(self) -> KernelSource:
        """The probe; raises ConfigError where that does not measure."""
        self.spec.require_probe("this")
        assert self._probe is not None
        return self._probe

    @property
    def learning(self) -> NodeLearning:
        """Assigns packets to slices by sessions; raises ConfigError."""
        self.spec.require_probe("this")
        assert self._learning is not None
        return self._learning

    def observe(self) -> Telemetry:
        """As `LiveBackend.observe`; also polls, for callers that step the backend without a loop."""
        if self._learning is not None:
            self._learning.poll()
        return super().observe()

    def check(self) -> list[str]:
        """As `LiveBackend.check`, with UPFs that are missing and limits that are tighter than at the start. Updates the
        CPUs of each UPF in ``context``, and unless `spec` sets it the number of all CPUs."""
        gone, located = self._follower.look(), self._follower.located
        bound = self._binding.look(located, self.context.threads)
        if self._probe is not None:
            self._probe.sched.usable = self._binding.cpus
        if self.spec.cpus is None:
            self.context.logical_cpus[:] = len(self._binding.cpus)
        learned = [] if self._learning is None else self._learning.check(located)
        return [*gone, *bound, *learned, *super().check()]

    def counts(self) -> dict[str, int]:
        """As `LiveBackend.counts`, with hooks on N4."""
        counts = super().counts()
        if self._learning is not None:
            counts["hooks_taken"] += self._learning.hooks_taken
        return counts

    @property
    def housing(self) -> NodeHousing | None:
        """Gives UPFs groups of their own in mode ``live``; None if no UPF is to get a group."""
        measured = list if self._probe is None else self._probe.sched.refresh
        return NodeHousing(self._own, self._follower, measured) if self._own else None

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
            if self._learning is not None:
                self._learning.close()

    def _probed(
        self, points: Sequence[SlicePoints], families: Sequence[tuple[str, ...]], undo: contextlib.ExitStack
    ) -> tuple[KernelSource, NodeLearning]:
        """The probe, and what it learns from sessions."""
        probe = KernelSource(points, uplink_mbps=self.spec.uplink_mbps or math.inf, wait_s=LOOP_WAIT_S)
        undo.callback(probe.close)
        learning = NodeLearning(points, families, self.located, probe.packets.sharing, probe.background)
        undo.callback(learning.close)
        return probe, learning

    def _own_groups(self, locations: Mapping[str, SliceLocation]) -> OwnGroups:
        """The object that may move UPFs, with the first slice of each UPF, and the UPFs that softirqs work for."""
        movable = {name: item.family[0] for name, item in locations.items() if item.housed}
        upfs = {item.name for item in self.spec.slices if item.upf is not None} & set(movable.values())
        polled = {first: locations[first].n3 for first in upfs if in_softirqs(self.located[first], locations[first].n3)}
        return OwnGroups(self.spec.name, movable, polled)


def open_node(name: str, control_period_s: float, scenario: str | None) -> Node:
    """A node to control, by name or file of its configuration.

    Raises:
        ConfigError: see `NodeBackend`; or a scenario, whose loads a node cannot make.
    """
    if scenario is not None:
        raise ConfigError(f"scenario = {scenario!r}: expected none with a node, which has its own traffic")
    unfinished = ""
    if marked := marks_left(name):
        expected = "expected what the core calls each slice and what it is promised, without the marks"
        unfinished = f"{name}: {' and '.join(marked)} still marked FILL IN; {expected}"
    return node_of(NodeBackend(NodeSpec.from_yaml(name), control_period_s), unfinished)


def node_of(backend: NodeBackend, unfinished: str = "") -> Node:
    """The node for a controller."""
    spec = backend.spec
    fixed: dict[tuple[str, KnobName], str] = {
        (name, knob): answer.why
        for name, answers in backend.authority.items()
        for knob, answer in answers.items()
        if not answer.moves
    }
    return Node(
        spec.name,
        "node",
        backend,
        backend.targets,
        round(1e3 * spec.quota_period_ms),
        spec.drop_horizon_ms,
        hardware=spec.hardware,
        housing=backend.housing,
        fixed=fixed,
        own_groups=backend.own_groups,
        unfinished=unfinished,
    )
