"""The lease of knobs: the right to move them, from before the first write until after the last."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from slicepilot.controller.actuators.cilium.rate import mbps
from slicepilot.controller.actuators.node import NodeActuator
from slicepilot.controller.actuators.targets import CPU_KNOBS, SliceTargets, pod_of
from slicepilot.controller.loop.node import Housing, Node
from slicepilot.controller.system.background import LOOP_WAIT_S, BackgroundCaller
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.cgroup_paths import awaited
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.watchdog.external_change import ExternalChange, ExternalChangeWatch, Policy, Reasserts
from slicepilot.controller.watchdog.handle import SupervisorHandle
from slicepilot.controller.watchdog.keeper import JournalKeeper
from slicepilot.controller.watchdog.lock import Locks
from slicepilot.controller.watchdog.recovery import recover
from slicepilot.env.knobs import KNOB_FIELDS, KnobName

from .run_config import RunConfig

REASSERTED = 20  # changes that are reported, the latest in a window
HANG_PERIODS = 5
UNLIMITED: dict[KnobName, float] = {"cpu_limit_mcpu": math.inf, "nice": 0.0}  # where nothing of ours acts


def hang_s(config: RunConfig, node: Node) -> float:
    """Without a tick for so long a loop hangs; with long periods silence is longer."""
    return max(config.watchdog.hang_s, HANG_PERIODS * node.backend.context.period_s.item())


def groups_to_lock(targets: Sequence[SliceTargets]) -> dict[str, Path]:
    """Groups that a controller that acts on these slices locks, by their names in messages.

    Two controllers with a container each of one pod would both move its weight. Raises ActuatorError.
    """
    own = [target for target in targets if target.cgroup is not None and not awaited(target.cgroup)]
    groups = {f"slice {target.name}": target.group for target in own}
    return groups | {
        f"pod of slice {target.name}": pod_of(CpuGroup.at(target.group)).path for target in own if target.weighs_pod
    }


class KnobLease:
    """Locks slices, restores what a dead controller has left, writes the journal, starts the supervisor, gives
    UPFs groups of their own that are to have one, opens the actuator: in this order, so that at no time anything is
    moved that would not come back.

    Args:
        targets: the slices to act on.
        node: they are on.
        config: of the run.
        state: folder for the journal.
        ring: path of the tick ring, whose beat the supervisor watches.

    Attributes:
        actuator: over ``targets``.
        recovered: what was left by a controller that had died, and has been put back; None if nothing was.

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
            self._locks = undo.enter_context(Locks(folders | groups_to_lock(targets)))
            self.recovered = recover(state)
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
                node.quota,
                node.egress,
                keeper.remember,
                self._renew,
                wait_s=LOOP_WAIT_S,
                pacing=keeper.pacing,
            )
            undo.pop_all()
        self._external = ExternalChangeWatch(self.actuator, config.foreign, self._release)
        # Entries that the loop makes go to disk from a thread: an fsync may take many periods.
        self._later = BackgroundCaller("journal", wait_s=0.0)
        self._entry: Future[None] | None = None
        self._standing: dict[tuple[str, str], dict[str, Any]] = {}
        self._reasserted: deque[dict[str, Any]] = deque(maxlen=REASSERTED)
        self._given_back = False

    def look_after(self) -> int:
        """Between ticks, about once a second: a supervisor that was killed is started again, and knobs that another
        program has set are noticed; returns how many. Raises ActuatorError for a journal that could not be written
        meanwhile."""
        if self._supervisor is not None:
            self._supervisor.revive()
        changes: list[ExternalChange] = []
        with contextlib.suppress(ActuatorError):  # receipts report a slice that has gone
            changes = self._external.look(time.monotonic_ns()) + self._moved_out()
            self._note(changes)
        if self._entry is not None and self._entry.done():
            entry, self._entry = self._entry, None
            entry.result()
        return len(changes)

    def reclaim(self) -> None:
        """An operator wants all knobs back, in the journal first; takes as long as the disk. Raises ActuatorError."""
        for change in self._external.standing:
            self._keeper.reclaim(change.slice, change.knob)

    def resume(self) -> None:
        """Then in the kernel, between ticks; raises ActuatorError."""
        self._external.resume()
        self._moves.clear()
        if self._housing is not None:
            self._housing.resume()
        self._standing.clear()
        self._reasserted.clear()

    @property
    def yielded(self) -> set[str]:
        """Slices of which a knob is respected."""
        return {name for name, _ in self.actuator.yielded}

    def foreign(self) -> list[dict[str, Any]]:
        """Knobs that are respected now, and the latest that were set again, for the ring's notes."""
        return sorted([*self._standing.values(), *self._reasserted], key=lambda note: note["time_ns"])

    def paced(self) -> list[dict[str, Any]]:
        """Slices whose egress rate is Cilium's entry, with what waits there, for the ring's notes."""
        now_ns, notes = time.monotonic_ns(), []
        for name, rate in self.actuator.paced.items():
            waits_ms = None
            with contextlib.suppress(ActuatorError):  # receipts report what has gone
                waits_ms = rate.waits_ms(now_ns)
            found = mbps(rate.found_entry.bytes_per_s)
            note = {"slice": name, "endpoint": rate.found_entry.endpoint, "waits_ms": waits_ms}
            notes.append(note | {"found_mbps": None if found == math.inf else found})
        return notes

    def supervisor(self) -> dict[str, Any] | None:
        """For the ring's notes."""
        return None if self._supervisor is None else self._supervisor.notes()

    def give_back(self) -> None:
        """Restore the original settings, then end supervision and locks; more than once does nothing.

        Raises:
            ActuatorError: something could not be restored. The journal stays, and the supervisor goes on.
        """
        if self._given_back:
            return
        self._given_back = True
        with self._locks:
            self._later.close()
            self.actuator.close()
            self._end()

    def _house(self, housing: Housing, targets: Sequence[SliceTargets]) -> None:
        """Groups for those that have none; from here on they are like any other slice's."""
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

    def _moved_out(self) -> list[ExternalChange]:
        """UPFs that another program has moved out of their groups: nothing that is set there acts any more."""
        changes = []
        for moved in [] if self._housing is None else self._housing.look():
            for knob in self._cpu.get(moved.slice, ()):
                text = "; ".join(filter(None, (moved.text, moved.refusal)))
                policy: Policy = "reassert" if moved.refusal is None else "respect"
                change = ExternalChange(moved.slice, knob, UNLIMITED[knob], self._held(moved.slice, knob), policy, text)
                changes.append(change if policy == "reassert" else self._external.respect(change))
        return changes

    def _held(self, name: str, knob: KnobName) -> float:
        row, column = KNOB_FIELDS.index(knob), list(self._cpu).index(name)
        return float(self.actuator.receipt.applied.values[row, column, 0])

    def _renew(self, target: SliceTargets) -> None:
        """The original settings of a slice that was made anew, where the supervisor can restore them."""
        self._keeper.renew(target)
        if self._supervisor is not None:
            self._supervisor.follow()

    def _end(self) -> None:
        """Everything is restored: end journal and supervisor."""
        if self._housing is not None:
            self._housing.end()
        try:
            self._keeper.remove()
        finally:  # it knows from memory, whatever becomes of the disk
            if self._supervisor is not None:
                self._supervisor.disarm_and_wait()
            self._keeper.close()

    def _note(self, changes: Sequence[ExternalChange]) -> None:
        for change in changes:
            if change.policy == "respect":
                self._standing[change.slice, change.knob] = _as_note(change)
            else:
                self._reasserted.append(_as_note(change))
                if self._external.config.restore == "newest":
                    found = self.actuator.found_cpu(change.slice)
                    self._entry = self._later.call(partial(self._keeper.rebase, change.slice, found))
        theirs = {(change.slice, change.knob) for change in self._external.standing}
        self._standing = {key: note for key, note in self._standing.items() if key in theirs}
        oldest_ns = time.time_ns() - 1e9 * self._external.config.window_s
        while self._reasserted and self._reasserted[0]["time_ns"] < oldest_ns:
            self._reasserted.popleft()

    def _release(self, name: str, knob: KnobName) -> None:
        self._entry = self._later.call(partial(self._keeper.release, name, knob))


def _as_note(change: ExternalChange) -> dict[str, Any]:
    return {name: None if value == math.inf else value for name, value in asdict(change).items()} | {
        "time_ns": time.time_ns()
    }
