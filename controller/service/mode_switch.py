"""Switching modes: knobs are leased before the first write to them, and given back after the last."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError, did_you_mean
from slicepilot.controller.actuators.canary import CanaryActuator
from slicepilot.controller.actuators.node import NodeActuator
from slicepilot.controller.actuators.shadow import ShadowActuator
from slicepilot.controller.actuators.shared_cpu import whole
from slicepilot.controller.contracts.modes import Mode
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.loop.live_backend import Actuator
from slicepilot.controller.loop.loop import Loop
from slicepilot.controller.loop.mailbox import LoopEndedError
from slicepilot.controller.loop.node import Node
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.realtime import ThreadBesideTheLoop

from .knob_lease import KnobLease
from .run_config import RunConfig

if TYPE_CHECKING:
    from .loaded_policy import LoadedPolicy

Make = Callable[[Callable[[], None]], None]
"""Makes a change between two ticks, as `Mailbox.make` does, or at once while there are none."""


class ModeSwitch:
    """Switches the mode, and with it the actuator, while the loop runs.

    Before a mode that acts, slices are taken over (`KnobLease`): a lock on each, a journal on disk, a supervisor
    that restores it. In shadow there is no lease, and no writable descriptor.

    Modes are switched from several threads, one at a time. The loop begins in shadow, the node with a read-only
    actuator; ``state`` is the folder for the journal, ``ring`` the path of the tick ring.

    Attributes:
        slices: acted on now, in the node's order.
        foreign_changes: how often another program had set knobs.
        switching: who holds this lock keeps the mode as it is.
    """

    def __init__(self, loop: Loop, node: Node, config: RunConfig, state: Path, ring: Path) -> None:
        self.slices: tuple[str, ...] = ()
        self.foreign_changes = 0
        self._loop, self._node, self._config, self._state, self._ring = loop, node, config, state, ring
        self._names = node.backend.slices.names
        self._lease: KnobLease | None = None
        self._kept = ""  # why the lease is kept in shadow: what could not be restored
        self._retrying: threading.Thread | None = None
        self._restored: dict[str, Any] | None = None
        self.switching = threading.RLock()

    def is_in(self, mode: Mode, canary: tuple[str, ...]) -> bool:
        """Whether that is how it is already; raises ConfigError as `switch`."""
        return (mode, controlled_slices(mode, canary, self._names)) == (self._loop.active.mode, self.slices)

    def switch(
        self,
        mode: Mode,
        canary: tuple[str, ...],
        policy: LoadedPolicy,
        make: Make,
        overtaken: Callable[[], bool] = lambda: False,
    ) -> None:
        """Open the actuator of a mode, exchange it between two ticks, then close the previous.

        From a mode that acts to another that acts it passes through shadow: the original settings are restored and read
        again. The caller checks whether the policy may act.

        Args:
            mode, canary, policy: as ordered, and what decides.
            make: see `Make`.
            overtaken: whether shadow has been ordered since; then the mode stays.

        Raises:
            ConfigError: another controller has the slices, or the order was overtaken.
            ActuatorError: knobs that cannot be set, journalled or restored.
        """
        slices = controlled_slices(mode, canary, self._names)
        with self.switching:
            if (mode, slices) == (self._loop.active.mode, self.slices) and not self._kept:
                return
            if slices and overtaken():
                raise ConfigError(f"mode {mode.label}: shadow was ordered meanwhile; order it again")
            if self._lease is not None:
                self._retreat(make)
            if slices:
                targets = whole([target for target in self._node.targets if target.name in slices])
                self._lease = lease = KnobLease(targets, self._node, self._config, self._state, self._ring)
                try:
                    self._into(mode, slices, self._actuator(lease.actuator, slices, policy), make).close()
                except BaseException:
                    self.give_back()
                    raise

    def give_back(self) -> None:
        """Restore the original settings and end the lease; raises ActuatorError, and then keeps it for another try."""
        with self.switching:
            if self._lease is not None:
                try:
                    self._loop.report.restored = text = self._lease.give_back()
                except Exception as error:
                    self._kept = str(error)
                    raise
                self._kept, self._lease = "", None
                self._restored = {"time_ns": time.time_ns(), "text": text}

    def resume(self) -> None:
        """Take back knobs that another program has set, between two ticks."""
        if self._acting is not None:
            self._acting.resume()

    def look_after(self) -> None:
        """Look after the lease, mark slices with a knob that another program has set, and try again, in a thread, to
        restore what could not be restored."""
        if self._acting is not None:
            self.foreign_changes += self._acting.look_after()
        if self._kept and (self._retrying is None or not self._retrying.is_alive()):
            self._retrying = ThreadBesideTheLoop(self._retry, "restore")
            self._retrying.start()
        alone = self._left_alone(self.slices)
        if not np.array_equal(alone, self._loop.active.left_alone_reasons):
            self._loop.active = dataclasses.replace(self._loop.active, left_alone_reasons=alone)

    def notes(self) -> dict[str, Any]:
        lease, acting = self._lease, self._acting
        return {
            "canary": list(self.slices) if self._loop.active.mode is Mode.CANARY else [],
            "foreign": [] if acting is None else acting.foreign(),
            "paced": [] if acting is None else acting.paced(),
            "restored": self._restored,
            "supervisor": None if lease is None else lease.supervisor(),
        }

    @property
    def _acting(self) -> KnobLease | None:
        """The lease while the mode acts. The loop's thread uses no other: the thread that switches may be restoring,
        and what it writes is no other program's change."""
        return self._lease if self.slices else None

    def _retry(self) -> None:
        with self.switching:
            report, failure = self._loop.report, self._kept
            if not failure:
                return
            report.last_error = failure
            with contextlib.suppress(ActuatorError, LoopEndedError, TimeoutError):  # the next try, or the end
                self._retreat(self._loop.mailbox.make)
                report.recovered = failure

    def _retreat(self, make: Make) -> None:
        """Switch to shadow: end writing, restore the original settings, then read them anew."""
        before = self._into(Mode.SHADOW, (), self._watcher(), make)
        try:
            self.give_back()
        finally:
            before.close()
        self._into(Mode.SHADOW, (), self._watcher(), make).close()

    def _into(self, mode: Mode, slices: tuple[str, ...], actuator: Actuator, make: Make) -> Actuator:
        """Exchange actuator and mode; returns the previous actuator, still open. The new is closed on failure."""
        before: list[Actuator] = []
        active = dataclasses.replace(self._loop.active, mode=mode, left_alone_reasons=self._left_alone(slices))

        def swap() -> None:
            report = self._loop.report
            report.mode_ends(self._loop.active.mode, self._loop.active.guard)
            report.not_moved |= self._node.backend.not_moved
            report.acted_on.update(slices)
            before.append(self._node.backend.use(actuator))
            self._loop.active, self.slices = active, slices
            self._loop.held = actuator.receipt.applied
            active.guard.in_control = bool(slices)

        try:
            make(swap)
        except BaseException:
            actuator.close()
            raise
        return before[0]

    def _actuator(self, actuator: NodeActuator, slices: tuple[str, ...], policy: LoadedPolicy) -> Actuator:
        indices = [self._names.index(name) for name in slices]
        requests = policy.agent.request_mcpu
        if requests is not None:
            actuator.deploy(requests[indices])
        if policy.nice_scope == "process":
            # Threads are journalled before they are reniced: now, and not in the loop, which an fsync would hold up.
            actuator.apply(actuator.read("process"))
        if slices == self._names:
            return actuator
        return CanaryActuator(actuator, self._watcher(), indices)

    def _watcher(self) -> ShadowActuator:
        """The actuator for shadow, which also works while a slice is missing."""
        return ShadowActuator(self._node.targets, missing_ok=True)

    def _left_alone(self, slices: tuple[str, ...]) -> npt.NDArray[np.uint32]:
        """Reason bits of slices that a mode does not act on (in shadow: all, as the mode says), and of those of which
        another program has set a knob."""
        foreign = set() if self._lease is None else self._lease.yielded
        bits = [
            Reason.NOT_ACTING.bit * (bool(slices) and name not in slices)
            | Reason.FOREIGN_CHANGE.bit * (name in foreign)
            for name in self._names
        ]
        return np.asarray(bits, np.uint32)


def controlled_slices(mode: Mode, canary: Sequence[str], names: tuple[str, ...]) -> tuple[str, ...]:
    """The slices that a mode acts on, in the node's order; raises ConfigError."""
    if mode is not Mode.CANARY:
        return names if mode is Mode.LIVE else ()
    if not canary:
        raise ConfigError(
            "canary = none; expected names of the slices to act on: --canary NAME, or canary: [NAME] in a configuration"
        )
    if unknown := [name for name in canary if name not in names]:
        raise ConfigError(f"canary: unknown slice {unknown[0]!r}; {did_you_mean(unknown[0], names)}")
    return tuple(name for name in names if name in canary)
