"""One controller from start to end: who may write, and what is changed while the loop runs."""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import time
import uuid
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..configs import ConfigError
from .actuators.canary import CanaryActuator
from .actuators.node import NodeActuator
from .actuators.shadow import ShadowActuator
from .guard import Guard
from .guard_config import GuardConfig
from .live import Actuator
from .loop import Loop, LoopConfig, LoopReport, Pilot, Watcher
from .modes import MODES, Mode
from .node import Node
from .orders import Order
from .reasons import Reason
from .record.ring import TickRing
from .run_config import RunConfig
from .signals import StopRequest
from .takeover import Takeover

if TYPE_CHECKING:
    from .policies import Policy

CHORE_S = 1.0


class Operation:
    """Runs a policy on a node in the mode that is asked for, and changes mode, policy and guard while it runs.

    Whoever wants to write takes slices over first (`Takeover`): a lock on each, what was found on disk, a supervisor
    that restores it. In shadow there is none of this, and no descriptor that could write.

    Orders come from other threads. What is slow about them is done there; the loop only swaps what it works with,
    between two ticks.

    Args:
        node: with a read-only actuator; owned by the caller.
        config: how to run.
        policy: who decides.
        ring: where ticks go; owned by the caller.
        state: folder for the journal.
        stop: ends the loop.
        watch: see `Loop`.
        seed: of the agent and of loads that the backend plays.

    Raises:
        ConfigError: a guard that does not fit the node.
    """

    def __init__(
        self,
        node: Node,
        config: RunConfig,
        policy: Policy,
        ring: TickRing,
        state: Path,
        stop: StopRequest | None = None,
        watch: Watcher | None = None,
        seed: int = 0,
    ) -> None:
        self.node, self.config, self.policy, self.state = node, config, policy, state
        self.ring = ring
        self.slices = node.backend.slices
        self.run_id, self.started_ns = uuid.uuid4().hex, time.time_ns()
        self.notes: list[Callable[[], dict[str, Any]]] = [self._own_notes]
        self._guard_config = GuardConfig.from_yaml(config.guard)
        self._takeover: Takeover | None = None
        self._acting: tuple[str, ...] = ()
        self._last_reload: dict[str, Any] | None = None
        pilot = Pilot(policy.agent, self._guard(self._guard_config, policy), Mode.SHADOW, self._left_alone(()))
        budget_s = 1e-3 * config.budget_ms
        loop_config = LoopConfig(budget_s, lock_memory=config.lock_memory, check_s=CHORE_S, from_none=False, seed=seed)
        self.loop = Loop(node.backend, pilot, loop_config, stop, ring, watch)
        for chore in (self._look_after, self._publish_delays, self._publish_notes):
            self.loop.chores.add(chore, CHORE_S)
        self._describe()
        self._publish_notes()

    # -- life --------------------------------------------------------------------------------------------------

    def run(self, max_ticks: int | None, force: bool = False) -> LoopReport:
        """Take over what the configured mode acts on, loop until stopped, and give it back.

        Args:
            max_ticks: end after so many; None: when stopped.
            force: act with a bundle that was never promoted.

        Raises:
            ConfigError: a bundle that may not act, slices that another controller has.
            ActuatorError: knobs that cannot be set or journalled; nothing has been changed.
        """
        self.loop.config = dataclasses.replace(self.loop.config, max_ticks=max_ticks)
        self.loop.prepare()
        try:
            self._switch(MODES[self.config.mode], self.config.canary, force, lambda change: change())
            return self.loop.run()
        finally:
            self._give_back()

    # -- orders, from other threads ------------------------------------------------------------------------------

    def carry_out(self, order: Order) -> dict[str, Any]:
        """Do what an operator asks for; returns what has become of it.

        Raises:
            ConfigError: it cannot be done as asked; nothing has changed.
            ActuatorError: the knobs cannot be set; nothing has changed.
            LoopEndedError, TimeoutError: there is no loop that could.
        """
        guard = self.loop.pilot.guard
        if order.command == "mode":
            assert order.mode is not None
            self._switch(order.mode, order.slices, order.force, self.loop.changes.make)
        elif order.command == "reload":
            self._reload(order)
        elif order.command in {"pause", "resume", "safe"}:
            if order.command == "resume" and self._takeover is not None:
                self._takeover.reclaim()
            action = {"pause": guard.pause, "resume": self._resume, "safe": guard.order_safe}[order.command]
            self.loop.changes.make(action)
        else:
            raise ConfigError(f"command = {order.command!r}; accepted: mode, reload, pause, resume, safe")
        self.loop.changes.make(self._publish_notes)
        return {"mode": self.loop.pilot.mode.label, "slices": list(self._acting), "paused": guard.paused}

    def _resume(self) -> None:
        self.loop.pilot.guard.resume()
        if self._takeover is not None:
            self._takeover.resume()

    def _switch(
        self, mode: Mode, canary: tuple[str, ...], force: bool, make: Callable[[Callable[[], None]], None]
    ) -> None:
        """Open the actuator of a mode, swap it in between two ticks, then close the one before.

        From a mode that acts to another that acts it goes by way of the shadow: what was found is found again.
        """
        acting = {Mode.SHADOW: (), Mode.CANARY: canary, Mode.LIVE: self.slices.names}[mode]
        if mode is Mode.CANARY and not acting:
            raise ConfigError("canary = none; accepted: names of the slices to act on")
        if unknown := set(acting) - set(self.slices.names):
            raise ConfigError(f"canary: unknown slice {min(unknown)!r}; accepted: {', '.join(self.slices.names)}")
        if acting == self._acting:
            return
        if acting:
            self.policy.require_promoted(force)
        if self._takeover is not None:
            self._into(Mode.SHADOW, (), ShadowActuator(self.node.targets), make)
            self._give_back()
        if acting:
            self._takeover = takeover = self._take(acting)
            try:
                self._into(mode, acting, self._actuator(takeover.actuator, acting), make)
            except BaseException:
                self._give_back()
                raise

    def _into(
        self, mode: Mode, acting: tuple[str, ...], actuator: Actuator, make: Callable[[Callable[[], None]], None]
    ) -> None:
        before: list[Actuator] = []
        pilot = dataclasses.replace(self.loop.pilot, mode=mode, not_acting=self._left_alone(acting))

        def swap() -> None:
            before.append(self.node.backend.use(actuator))
            self.loop.pilot, self._acting = pilot, acting
            self.loop.held = actuator.receipt.applied
            pilot.guard.acting = bool(acting)

        make(swap)
        before[0].close()

    def _take(self, acting: tuple[str, ...]) -> Takeover:
        targets = [target for target in self.node.targets if target.name in acting]
        return Takeover(targets, self.node, self.config, self.state, self.ring.path)

    def _actuator(self, actuator: NodeActuator, acting: tuple[str, ...]) -> Actuator:
        requests = self.policy.agent.request_mcpu
        if requests is not None:
            actuator.deploy(requests[[self.slices.index(name) for name in acting]])
        if acting == self.slices.names:
            return actuator
        indices = [self.slices.index(name) for name in acting]
        return CanaryActuator(actuator, ShadowActuator(self.node.targets), indices)

    def _give_back(self) -> None:
        takeover, self._takeover = self._takeover, None
        if takeover is not None:
            takeover.give_back()

    def _reload(self, order: Order) -> None:
        """A new policy, guard or both: everything is loaded, checked and tried out before the loop takes it."""
        from .policies import load_bundle

        try:
            config = self._guard_config if order.guard is None else GuardConfig.from_yaml(order.guard)
            policy = self.policy if order.bundle is None else load_bundle(order.bundle, self.config.trust)
            if self._acting:
                policy.require_promoted(order.force)
            old = self.loop.pilot
            pilot = dataclasses.replace(
                old, agent=policy.agent, guard=Guard(config, self.slices, self.node.backend.context)
            )
            if order.bundle is not None:
                self.loop.ready(pilot)

            def swap() -> None:
                self.loop.report.add_interventions(self.loop.pilot.guard)
                pilot.guard.follow(self.loop.pilot.guard)
                self.loop.pilot, self.policy, self._guard_config = pilot, policy, config
                self._describe()

            self.loop.changes.make(swap)
        except BaseException as error:
            self._note_reload(False, str(error))
            raise
        self._note_reload(True, ", ".join(filter(None, (order.bundle, order.guard))))
        gc.collect()  # the loop has switched collections off; what the load left behind would stay for good

    def _note_reload(self, ok: bool, detail: str) -> None:
        self._last_reload = {"time_ns": time.time_ns(), "ok": ok, "detail": detail}

    # -- what the loop does between ticks ------------------------------------------------------------------------

    def _look_after(self) -> None:
        """The supervisor lives, and the knobs are as they were left."""
        if self._takeover is not None:
            self._takeover.look_after()

    def _publish_delays(self) -> None:
        self.ring.delays(self.node.backend.delay_counts())

    def _publish_notes(self) -> None:
        notes: dict[str, Any] = {}
        for part in self.notes:
            notes |= part()
        self.ring.note(notes)

    def _own_notes(self) -> dict[str, Any]:
        report, pilot = self.loop.report, self.loop.pilot
        takeover = self._takeover
        return {
            "mode": pilot.mode.label,
            "canary": list(self._acting) if pilot.mode is Mode.CANARY else [],
            "paused": pilot.guard.paused,
            "ordered_safe": pilot.guard.ordered_safe,
            "unmeasured": report.unmeasured,
            "last_error": report.last_error,
            "totals": report.totals() | {"missed_ticks": self.node.backend.ticks.missed},
            "foreign": [] if takeover is None else takeover.foreign(),
            "supervisor": None if takeover is None else takeover.supervisor(),
            "reload": self._last_reload,
        }

    def _describe(self) -> None:
        context, node = self.node.backend.context, self.node
        self.ring.describe(
            {
                "run_id": self.run_id,
                "name": node.name,
                "version": metadata.version("slicepilot"),
                "backend": node.kind,
                "agent": self.policy.agent.name,
                "bundle": self.policy.bundle,
                "slice_set": dataclasses.asdict(self.slices),
                "period_s": context.period_s.item(),
                "budget_s": self.loop.config.budget_s,
                "logical_cpus": context.logical_cpus.item(),
                "uplink_mbps": context.uplink_mbps.item() if math.isfinite(context.uplink_mbps.item()) else None,
                "threads": context.threads[:, 0].tolist(),
                "pid": os.getpid(),
                "started_ns": self.started_ns,
                "scheduling": str(self.loop.report.scheduling),
                "nice_scope": self.policy.nice_scope,
                "hardware": node.hardware,
                "guard": _finite(dataclasses.asdict(self._guard_config)),
            }
        )

    def _guard(self, config: GuardConfig, policy: Policy) -> Guard:
        context, requests = self.node.backend.context, policy.agent.request_mcpu
        guard = Guard(config, self.slices, context, policy.nice_scope, requests)
        guard.acting = bool(self._acting)
        return guard

    def _left_alone(self, acting: tuple[str, ...]) -> npt.NDArray[np.uint32]:
        """Reason bits of slices that a mode does not act on; in shadow none is acted on, which the mode says."""
        alone = [bool(acting) and name not in acting for name in self.slices.names]
        return np.where(alone, np.uint32(Reason.NOT_ACTING.bit), np.uint32(0))


def _finite(value: Any) -> Any:
    """The same for JSON, which has no infinity."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
