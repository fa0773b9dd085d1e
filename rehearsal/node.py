"""A node without UPFs: the simulator plays a scenario in real time, under the knobs that real cgroups have.

For trying a guard, a mode or a dashboard where no packets can be sent. Of the knobs CPU limits and weights count, which
are read from the groups; there is no device whose egress could be shaped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..configs import ConfigError
from ..controller.actuators.node import SliceTargets
from ..controller.actuators.shadow import ShadowActuator
from ..controller.loop.live_backend import LiveBackend, NodeFacts
from ..controller.loop.node import Node
from ..controller.system.cgroup import CpuHierarchy
from ..controller.telemetry.layout import BUCKETS
from ..env.simulator.backend import ScenarioRuns, SimulatorBackend
from ..env.simulator.scenario import Scenario
from ..env.telemetry import Telemetry


class Rehearsal:
    """A telemetry source: one simulated node, which sees the knobs of ``targets``. It begins anew when it has ended."""

    def __init__(self, simulator: SimulatorBackend, targets: Sequence[SliceTargets]) -> None:
        self._simulator, self._groups = simulator, ShadowActuator(targets)
        self.begin(0)

    def begin(self, seed: int | None) -> None:
        """From the start of the scenario."""
        self._simulator.reset(seed)
        self._left = self._simulator.context.num_steps

    def measure(self) -> Telemetry:
        """The next control period."""
        if not self._left:
            self.begin(None)
        self._left -= 1
        self._simulator.apply(self._groups.read())
        return self._simulator.observe()

    def warm_up(self) -> None:
        """Read the groups."""
        self._groups.read()

    def check(self) -> list[str]:
        """Groups that have gone."""
        return self._groups.refresh()

    def delay_counts(self) -> npt.NDArray[np.uint32]:
        """None: there are no packets."""
        return np.zeros((len(self._simulator.slices), BUCKETS), np.uint32)

    def close(self) -> None:
        """Release the groups' files."""
        self._groups.close()


class RehearsalBackend(LiveBackend):
    """`LiveBackend` over a rehearsal; its groups go when it is closed."""

    def __init__(self, source: Rehearsal, targets: Sequence[SliceTargets], runs: ScenarioRuns, facts: NodeFacts):
        groups = [target.cgroup for target in targets]
        super().__init__(runs.slices, source, ShadowActuator(targets), groups, facts)
        self._rehearsal, self._own = source, groups

    def _begin(self, seed: int | None) -> None:
        """Start the scenario from the beginning."""
        self._rehearsal.begin(seed)

    def measure(self) -> Telemetry:
        """Figures of the simulator, ``throttled_ratio`` too: nothing runs in the groups."""
        return self._rehearsal.measure()

    def close(self) -> None:
        """Restore the knobs, release everything, and remove the groups; more than once does nothing."""
        super().close()
        _remove(self._own)


def open_node(name: str, control_period_s: float, scenario: str | None) -> Node:
    """A simulated node that plays a scenario, with a group for each slice under ``slicepilot-NAME``.

    Raises:
        ConfigError: no scenario, or a group that is there already.
    """
    if scenario is None:
        raise ConfigError("scenario: missing; accepted: what the simulator shall play (--scenario)")
    played = Scenario.from_yaml(scenario)
    runs = ScenarioRuns(played, control_period_s=control_period_s)
    hierarchy, hardware = CpuHierarchy.find(), played.hardware_spec()
    parent = hierarchy.root / f"slicepilot-{name}"
    targets = [SliceTargets(own, parent / own) for own in runs.slices.names]
    with contextlib.ExitStack() as undo:
        undo.callback(_remove, [target.cgroup for target in targets])
        try:
            parent.mkdir()
            if hierarchy.version == 2:
                (parent / "cgroup.subtree_control").write_text("+cpu")
            for target in targets:
                target.cgroup.mkdir()
        except FileExistsError:
            undo.pop_all()
            raise ConfigError(f"name = {name!r}: {parent} is there already; accepted: another name") from None
        facts = NodeFacts(
            control_period_s,
            hardware.uplink_mbps,
            hardware.logical_cpus,
            max(1, round(played.duration_s / control_period_s)),
        )
        source = Rehearsal(SimulatorBackend(runs), targets)
        undo.callback(source.close)
        backend = RehearsalBackend(source, targets, runs, facts)
        undo.pop_all()
    return Node(name, "rehearsal", backend, targets, hardware=played.hardware)


def _remove(groups: Sequence[Path]) -> None:
    """Groups and the one they are in, as far as they are there."""
    for group in [*groups, groups[0].parent]:
        with contextlib.suppress(FileNotFoundError):
            group.rmdir()
