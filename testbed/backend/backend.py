"""The testbed as a backend: a scenario's loads on real UPFs, measured in the kernel, in real time."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError
from slicepilot.controller.actuators.node import NodeActuator, SliceTargets
from slicepilot.controller.actuators.shadow import ShadowActuator
from slicepilot.controller.loop.live_backend import Actuator, LiveBackend, live_context, live_traits
from slicepilot.controller.loop.node import Node
from slicepilot.controller.system.background import LOOP_WAIT_S
from slicepilot.controller.telemetry.histogram import quantiles_us
from slicepilot.controller.telemetry.points import NetPoint, SlicePoints
from slicepilot.controller.telemetry.source import KernelSource
from slicepilot.env.backend import NodeTraits
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.telemetry import Telemetry
from slicepilot.testbed.lifecycle.layout import netns_path
from slicepilot.testbed.lifecycle.processes import ProgramError
from slicepilot.testbed.lifecycle.removal import reclaim, running
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed

from .timeline import Timeline
from .traffic import LoadRun
from .transactions import Transactions

N3_BUFFER_PACKETS = 110.0  # what a UPF's socket was identified to hold (configs/hardware/testbed.yaml)
LOOK_EVERY_S = 1.0  # whether the testbed is still up
SETTLE_S = 0.3  # for queues to drain and the load to reach its rate before a run's first measurement


class TestbedBackend(LiveBackend):
    """One scenario on a testbed. Every reset starts its loads anew, with the seed's phases.

    Args:
        testbed: a running testbed with the scenario's slices.
        scenario: loads and events; its hardware describes a simulated node and is not used here.
        control_period_s: else the scenario's.
        owned: take the testbed down when closed.
        actuator: else the knobs of all slices, which it may write.
        record_packets: keep every packet's times for `packet_events`, which then has to be called often.

    Raises:
        ConfigError: other slices than the testbed's; an event that a testbed cannot make.
    """

    __test__ = False

    def __init__(
        self,
        testbed: Testbed,
        scenario: Scenario,
        control_period_s: float | None = None,
        owned: bool = False,
        record_packets: bool = False,
        actuator: Actuator | None = None,
    ) -> None:
        _check(scenario, testbed)
        period_s = control_period_s or scenario.control_period_s
        self.testbed, self.scenario = testbed, scenario
        self._owned = owned
        self._load: LoadRun | None = None
        self._look_s = 0.0
        with contextlib.ExitStack() as undo:
            if owned:
                undo.callback(testbed.down)
            source = KernelSource(
                points_of(testbed),
                uplink_mbps=testbed.spec.uplink_mbps,
                report_every=int(record_packets),
                wait_s=LOOP_WAIT_S,
            )
            self._packets = source.packets
            undo.callback(source.close)
            knobs: Actuator = actuator or actuator_of(testbed)
            undo.callback(knobs.close)
            self._timeline = Timeline(testbed, scenario)
            undo.callback(self._timeline.close)
            super().__init__(
                testbed.slices,
                source,
                knobs,
                [testbed.cgroup(name) for name in testbed.slices.names],
                live_context(
                    testbed.slices,
                    period_s,
                    testbed.spec.uplink_mbps,
                    num_steps=max(1, round(scenario.duration_s / period_s)),
                    traits=traits_of(testbed, scenario),
                ),
                period_s,
            )
            undo.pop_all()

    def _begin(self, seed: int | None) -> None:
        """Start the scenario's loads from the beginning."""
        self.stop_load()
        self._load = LoadRun(self.testbed, self.scenario, seed or 0)
        self._load.start()
        self._timeline.start(self._load.started_ns)

    def play(self, scenario: Scenario) -> None:
        """Set the scenario of the next reset; raises ConfigError for a scenario that a testbed cannot run."""
        _check(scenario, self.testbed)
        self.stop_load()
        self._timeline.close()
        self.scenario = scenario
        self._timeline = Timeline(self.testbed, scenario)
        self.context = replace(self.context, traits=traits_of(self.testbed, scenario))

    @property
    def work_done(self) -> int | None:
        """Blocks that the edge application has finished so far; None if there is no edge application."""
        if not self.testbed.spec.edge_workers:
            return None
        return int.from_bytes(self.testbed.edge_counter.read_bytes()[:8], sys.byteorder)

    def wait(self, prepare: Callable[[], None] | None = None) -> int:
        """Play the scenario's events that are due, then as `LiveBackend.wait`.

        Raises:
            ProgramError: the testbed was taken down.
        """
        self._timeline.step()
        if time.monotonic() > self._look_s:
            self._look_s = time.monotonic() + LOOK_EVERY_S
            if not self.testbed.journal.exists:
                raise ProgramError(f"testbed {self.testbed.spec.name!r} was taken down during the run")
        return super().wait(prepare)

    def measure(self) -> Telemetry:
        """Figures since the last measurement; a slice that is absent now is not valid."""
        telemetry = super().measure()
        self._timeline.mark_uplink(telemetry)
        return self._timeline.without_absent(telemetry)

    def packet_events(self) -> npt.NDArray[Any]:
        """The packets that left since the last call, `slicepilot.controller.telemetry.layout.PACKET_EVENT`."""
        return self._packets.events.read()

    @property
    def unreported_events(self) -> int:
        """Packets that `packet_events` will not have, because its buffer was full."""
        return int(self._packets.slices["exit"]["unreported"].sum())

    def transactions(self) -> Transactions:
        """PFCP session transactions with the testbed's UPFs."""
        return Transactions(self.testbed)

    def delay_p99_us(self, since: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
        """99th percentile of the delay of all packets (S,) since `delay_counts` said this; 0 of a slice without any."""
        return np.nan_to_num(quantiles_us(self.delay_counts() - since, [0.99])[:, 0])

    def stop_load(self) -> None:
        """End the loads, if any run."""
        self._timeline.stop()
        if self._load is not None:
            self._load.stop()
            self._load = None

    def close(self) -> None:
        """Stop the loads, restore the knobs, and take an owned testbed down; more than once does nothing."""
        with contextlib.ExitStack() as steps:
            if self._owned:
                self._owned = False
                steps.callback(self.testbed.down)
            steps.callback(self._timeline.close)
            steps.callback(super().close)
            steps.callback(self.stop_load)


def open_backend(
    scenario: str | Scenario,
    control_period_s: float | None = None,
    config: str = "default",
    record_packets: bool = False,
    read_only: bool = False,
    name: str | None = None,
) -> TestbedBackend:
    """A scenario on the testbed that is up, or else on a testbed of its own, which `close` takes down.

    With ``read_only`` its knobs are not written until it gets another actuator; ``name`` is the testbed's, none that of
    the configuration.

    Raises:
        ConfigError: unknown names, or a machine that cannot run a testbed.
    """
    played = Scenario.from_yaml(scenario) if isinstance(scenario, str) else scenario
    node = played.hardware_spec()
    spec = TestbedSpec.from_yaml(config).override(
        slices=played.slices,
        uplink_mbps=node.uplink_mbps,
        edge_workers=round(node.edge_threads),
        edge_request_mcpu=node.edge_request_mcpu,
        name=name,
    )
    reclaim(spec.name)
    owned = spec.name not in running()
    testbed = Testbed.up(spec, owned=True) if owned else Testbed.attach(spec.name)
    try:
        actuator = ShadowActuator(targets_of(testbed)) if read_only else None
        return TestbedBackend(testbed, played, control_period_s, owned, record_packets, actuator)
    except BaseException:
        if owned:
            testbed.down()
        raise


def open_node(name: str, control_period_s: float, scenario: str | None) -> Node:
    """A testbed to control, which runs a scenario or, without ``scenario``, is up with a load of its own.

    Its knobs are not written until it gets another actuator.

    Raises:
        ConfigError: unknown names, no testbed of this name, or a machine that cannot run a testbed.
    """
    if scenario is None:
        testbed = Testbed.attach(name)
        groups = [testbed.cgroup(name) for name in testbed.slices.names]
        context = live_context(testbed.slices, control_period_s, testbed.spec.uplink_mbps, traits=traits_of(testbed))
        with contextlib.ExitStack() as undo:
            source = KernelSource(points_of(testbed), uplink_mbps=testbed.spec.uplink_mbps, wait_s=LOOP_WAIT_S)
            undo.callback(source.close)
            actuator = ShadowActuator(targets_of(testbed))
            undo.callback(actuator.close)
            backend = LiveBackend(testbed.slices, source, actuator, groups, context, control_period_s)
            undo.pop_all()
    else:
        backend = played = open_backend(scenario, control_period_s, read_only=True, name=name)
        testbed = played.testbed
    return Node(testbed.spec.name, "testbed", backend, targets_of(testbed), quota_period_us(testbed))


def _check(scenario: Scenario, testbed: Testbed) -> None:
    if scenario.slice_set() != testbed.slices:
        raise ConfigError(
            f"scenario {scenario.name}: slices {scenario.slices!r}; expected those of testbed "
            f"{testbed.spec.name!r}, {testbed.spec.slices!r}"
        )
    if scenario.cpu_profile:
        raise ConfigError(f"scenario {scenario.name}: cpu_profile: a testbed's CPUs keep their speed; expected none")
    wanted = scenario.edge.threads if scenario.edge else 0
    if wanted != testbed.spec.edge_workers:
        raise ConfigError(
            f"scenario {scenario.name}: edge.threads = {wanted}; expected as many as testbed {testbed.spec.name!r} "
            f"has, {testbed.spec.edge_workers}"
        )


def actuator_of(testbed: Testbed) -> NodeActuator:
    """The slices' knobs."""
    return NodeActuator(targets_of(testbed), quota_period_us(testbed))


def quota_period_us(testbed: Testbed) -> int:
    """CFS period of CPU limits."""
    return round(1e3 * testbed.spec.quota_period_ms)


def traits_of(testbed: Testbed, scenario: Scenario | None = None) -> NodeTraits:
    """The traits of a testbed that a policy knows."""
    traits = live_traits(testbed.slices, testbed.spec.quota_period_ms, N3_BUFFER_PACKETS)
    has_classes = bool(scenario and scenario.uplink_classes)
    return replace(traits, uplink_classes=np.full(1, has_classes))


def points_of(testbed: Testbed) -> list[SlicePoints]:
    """Where the probe measures: N3 ingress and the far end of the shared uplink.

    Not at the TUN device: nothing here uses that part of the delay, and a point costs some 200 ns a packet.
    """
    after_uplink = NetPoint(netns_path(testbed.layout.data_network), "n6")
    return [
        SlicePoints(
            name=plan.name,
            n3=NetPoint(netns_path(plan.netns), "n3"),
            n6=after_uplink,
            n4=NetPoint(netns_path(plan.netns), "n4"),
            cgroup=testbed.cgroup(plan.name),
        )
        for plan in testbed.layout.slices
    ]


def targets_of(testbed: Testbed) -> list[SliceTargets]:
    """Where the knobs are."""
    return [
        SliceTargets(plan.name, testbed.cgroup(plan.name), "n6", Path(netns_path(plan.netns)))
        for plan in testbed.layout.slices
    ]
