"""The lease of knobs: the right to move them, from before the first write until after the last."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slicepilot.controller.actuators.cilium.rate import mbps
from slicepilot.controller.actuators.node import NodeActuator
from slicepilot.controller.actuators.targets import CPU_KNOBS, SliceTargets, pod_of
from slicepilot.controller.loop.node import Housing, Node
from slicepilot.controller.system.background import LOOP_WAIT_S
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.cgroup_paths import awaited
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.watchdog.external_change import ExternalChange, ExternalChangeWatch, Policy, Reasserts
from slicepilot.controller.watchdog.handle import SupervisorHandle
from slicepilot.controller.watchdog.keeper import JournalKeeper
from slicepilot.controller.watchdog.lock import Locks
from slicepilot.controller.watchdog.recovery import recover
from slicepilot.controller.watchdog.restore import restore
from slicepilot.env.knobs import KNOB_FIELDS, KnobName

from .run_config import RunConfig

HANG_PERIODS = 5
UNLIMITED: dict[KnobName, float] = {"cpu_limit_mcpu": math.inf, "nice": 0.0}  # what holds without our settings


def hang_s(config: RunConfig, node: Node) -> float:
    """Time without a tick after which a loop counts as hung."""
    return max(config.watchdog.hang_s, HANG_PERIODS * node.backend.context.period_s.item())


def groups_to_lock(targets: Sequence[SliceTargets]) -> dict[str, Path]:
    """Groups to lock before these slices are controlled, by their names in messages; raises ActuatorError.

    Pods are included because two controllers with one container each of a pod would both move the pod's weight.
    """
    own = [target for target in targets if target.cgroup is not None and not awaited(target.cgroup)]
    groups = {f"slice {target.name}": target.group for target in own}
    return groups | {
        f"pod of slice {target.name}": pod_of(CpuGroup.at(target.group)).path for target in own if target.weighs_pod
    }


class KnobLease:
    """Locks slices, restores what a dead controller has left, writes the journal, starts the supervisor, gives
    UPFs their own groups where configured, and opens the actuator: in this order, so that everything that is changed
    will be restored.

    Args:
        targets: the slices of the node to act on.
        state: folder for the journal.
        ring: path of the tick ring with the heartbeat that the supervisor watches.

    Attributes:
        actuator: over ``targets``.
        recovered: what dead controllers had left and was restored; None if there was nothing.

    Raises:
        ConfigError: another controller has one of the slices.
        ActuatorError: the journal or a knob cannot be written, or the supervisor does not start; nothing has changed.
    """

    def __init__(self, targets: Sequence[SliceTargets], node: Node, config: RunConfig, state: Path, ring: Path) -> None:
        self._supervisor: SupervisorHandle | None = None
        self._housing, self._moves = node.housing, Reasserts(config.foreign)
        self._cpu: dict[str, list[KnobName]] = {
            target.name: [knob for knob in CPU_KNOBS if knob not in target.left] for target in targets
        }
        with contextlib.ExitStack() as undo:
            state.mkdir(parents=True, exist_ok=True)
            folders = {f"state folder of {node.name}": state}
            groups = groups_to_lock(targets)
            self._locks = undo.enter_context(Locks(folders | groups))
            self.recovered = recover(state, groups.values())
            if self.recovered is not None and self._housing is not None:
                self._housing.find_again()
            self._keeper = JournalKeeper(state, targets)
            undo.callback(self._end)
            self._supervisor = SupervisorHandle(
                self._keeper,
                ring,
                self._locks.descriptors,
                hang_s(config, node),
                config.harden,
                config.watchdog.leave_groups,
            )
            if self._housing is not None:
                self._house(self._housing, targets)
            keeper = self._keeper
            self.actuator = NodeActuator(
                targets,
                node.quota_period_us,
                node.drop_horizon_ms,
                keeper.remember,
                self._renew,
                wait_s=LOOP_WAIT_S,
                pacing=keeper.pacing,
            )
            undo.pop_all()
        self._external = ExternalChangeWatch(self.actuator, config.foreign, self._keeper)
        self._closed = False

    def look_after(self) -> int:
        """Restart a supervisor that was killed, and notice knobs that another program has set; call it between ticks,
        about once a second. Returns the number of changes."""
        if self._supervisor is not None:
            self._supervisor.revive()
        try:
            return len(self._external.look(time.monotonic_ns())) + self._moved_out()
        except ActuatorError as error:
            if not error.vanished:
                raise
            return 0  # receipts report a slice that has gone

    def resume(self) -> None:
        """Take all knobs back, between ticks; raises ActuatorError."""
        self._external.resume()
        self._moves.clear()
        if self._housing is not None:
            self._housing.resume()

    @property
    def yielded(self) -> set[str]:
        """Slices of which another program's value of a knob is kept."""
        return {name for name, _ in self.actuator.yielded}

    def foreign(self) -> list[dict[str, Any]]:
        return self._external.report()

    def paced(self) -> list[dict[str, Any]]:
        """Slices that Cilium paces, with the waiting time there, for the ring's notes."""
        now_ns, notes = time.monotonic_ns(), []
        for name, rate in self.actuator.paced.items():
            waits_ms = None
            with contextlib.suppress(ActuatorError):  # receipts report what has gone
                waits_ms = rate.waits_ms(now_ns)
            original = mbps(rate.original.bytes_per_s)
            note = {"slice": name, "endpoint": rate.original.endpoint, "waits_ms": waits_ms}
            notes.append(note | {"found_mbps": None if original == math.inf else original})
        return notes

    def supervisor(self) -> dict[str, Any] | None:
        return None if self._supervisor is None else self._supervisor.notes()

    def give_back(self) -> str:
        """Restore the original settings, then end supervision and locks.

        Returns what was restored, as a text.

        Raises:
            ActuatorError: something could not be restored. Journal, supervisor and locks stay, and this may be called
                again: then it restores from the journal.
        """
        if self._closed:
            report = restore(self._keeper.journal)
            if report.failed:
                raise ActuatorError(f"not restored: {'; '.join(report.failed)}")
            text = f"original settings restored after a failure: {report}"
        else:
            self._closed, left = True, len(self.actuator.yielded)
            self.actuator.close()
            restored = self.actuator.restored
            slices = len({name for name, _ in restored})
            others = f"; {_counted(left, 'knob')} left to other programs" if left else ""
            text = f"original settings restored: {_counted(slices, 'slice')}, {_counted(len(restored), 'knob')}{others}"
        self._end()
        self._locks.close()
        return text

    def _house(self, housing: Housing, targets: Sequence[SliceTargets]) -> None:
        names = [name for name, knobs in self._cpu.items() if knobs]
        fresh = [
            target
            for target in targets
            if target.name in names and target.cgroup is not None and awaited(target.cgroup)
        ]
        housing.begin(names, self._keeper.house, lambda name: self._moves.refusal(name, time.monotonic_ns()))
        for target in fresh:
            self._locks.add(f"slice {target.name}", target.group)
            self._keeper.renew(target)

    def _moved_out(self) -> int:
        """Treat UPFs that another program has moved out of their groups as changed; returns how many knobs."""
        count = 0
        for moved in [] if self._housing is None else self._housing.look():
            for knob in self._cpu.get(moved.slice, ()):
                text = "; ".join(filter(None, (moved.text, moved.refusal)))
                policy: Policy = "reassert" if moved.refusal is None else "respect"
                change = ExternalChange(moved.slice, knob, UNLIMITED[knob], self._held(moved.slice, knob), policy, text)
                (self._external.undone if policy == "reassert" else self._external.respect)(change)
                count += 1
        return count

    def _held(self, name: str, knob: KnobName) -> float:
        row, column = KNOB_FIELDS.index(knob), list(self._cpu).index(name)
        return float(self.actuator.receipt.applied.values[row, column, 0])

    def _renew(self, target: SliceTargets) -> None:
        """Write the original settings of a slice that was made anew to the journal."""
        self._keeper.renew(target)
        if self._supervisor is not None:
            self._supervisor.follow()

    def _end(self) -> None:
        """End journal and supervisor, after everything was restored."""
        if self._housing is not None:
            self._housing.end()
        try:
            self._keeper.remove()
        finally:  # it sees the journal in memory
            if self._supervisor is not None:
                self._supervisor.disarm_and_wait()
            self._keeper.close()


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
