"""One controller from start to end: what it runs, and what is changed while the loop runs."""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slicepilot.configs.text import as_many_as_fit, shortened
from slicepilot.controller.contracts.latches import slice_remedy, trip_text
from slicepilot.controller.contracts.modes import MODES, Mode
from slicepilot.controller.contracts.orders import Order
from slicepilot.controller.guard.config import GuardConfig
from slicepilot.controller.guard.guard import Guard
from slicepilot.controller.loop.loop import ActivePolicy, Loop, LoopConfig, LoopReport, Watcher
from slicepilot.controller.loop.node import Node
from slicepilot.controller.record.ring import TickRing
from slicepilot.controller.system import sd_notify
from slicepilot.controller.system.realtime import start_ahead, stop_being_ahead
from slicepilot.controller.system.signals import StopRequest
from slicepilot.env.knobs import KNOB_FIELDS

from .knob_lease import hang_s
from .mode_switch import ModeSwitch
from .run_config import RunConfig

if TYPE_CHECKING:
    from .loaded_policy import LoadedPolicy

PERIODIC_TASK_S = 1.0
FIRST_TICK_S = 60.0
# Notes have to fit into the ring (`DOCUMENT_BYTES`), whatever names and bundles contain.
LONGEST_DETAIL, MOST_UNMEASURED_BYTES = 1000, 1 << 16


class Controller:
    """Runs a policy on a node in the configured mode, and changes mode, policy and guard while it runs.

    Orders come from other threads, which do their slow parts; the loop only exchanges what it works with, between two
    ticks.

    Args:
        node, ring: owned by the caller; the node with a read-only actuator.
        config, policy: how to run, and what decides.
        state: folder for the journal.
        stop, watch: see `Loop`.
        seed: of the agent and of loads that the backend plays.

    Raises:
        ConfigError: a guard that does not fit the node.
    """

    def __init__(
        self,
        node: Node,
        config: RunConfig,
        policy: LoadedPolicy,
        ring: TickRing,
        state: Path,
        stop: StopRequest | None = None,
        watch: Watcher | None = None,
        seed: int = 0,
    ) -> None:
        self.node, self.config, self.policy, self.ring = node, config, policy, ring
        self.slices = node.backend.slices
        self.run_id, self.started_ns = uuid.uuid4().hex, time.time_ns()
        self._guard_config = GuardConfig.from_yaml(config.guard)
        self._last_reload: dict[str, Any] | None = None
        self._signal: dict[str, Any] | None = None
        self._forced: LoadedPolicy | None = None
        self.begun = False
        self._started = threading.Event()
        self._shadow_first = False  # ordered during the start, which then does not act
        guard = self._guard(self._guard_config, policy)
        active = ActivePolicy(policy.agent, guard, Mode.SHADOW, np.zeros(len(self.slices), np.uint32))
        loop_config = LoopConfig(
            config.budget_ratio,
            lock_memory=config.lock_memory,
            cpu=config.cpu,
            check_s=PERIODIC_TASK_S,
            seed=seed,
        )
        self.loop = Loop(node.backend, active, loop_config, stop, ring, watch)
        self._modes = ModeSwitch(self.loop, node, config, state, ring.path)
        self.notes: list[Callable[[], dict[str, Any]]] = [self._own_notes, self._modes.notes]
        for task in (self._modes.look_after, self._publish_delays, self._publish_notes):
            self.loop.periodic_tasks.add(task, PERIODIC_TASK_S)
        self._describe()
        self._publish_notes()

    # -- life --------------------------------------------------------------------------------------------------

    def run(self, max_ticks: int | None, force: bool = False) -> LoopReport:
        """Take over what the configured mode acts on, unless shadow was ordered meanwhile; loop until stopped, and give
        it back.

        Args:
            max_ticks: end after so many; None: when stopped.
            force: act with a bundle that was never promoted.

        Raises:
            ConfigError: a bundle that may not act, slices that another controller has.
            ActuatorError: knobs that cannot be set or journalled; nothing has been changed.
        """
        self.loop.config = dataclasses.replace(self.loop.config, max_ticks=max_ticks)
        self._forced = self.policy if force else None
        self.loop.prepare()
        try:
            mode, canary = MODES[self.config.mode], self.config.canary
            if mode is not Mode.SHADOW:
                self.policy.require_promoted(force)
            if not self._shadow_first:
                self._modes.switch(mode, canary, self.policy, lambda change: change())
            self._started.set()
            stop_being_ahead()
            return self.loop.run(self._describe)  # again: the scheduling class is known only then
        finally:
            self._started.set()  # waiting orders learn that there is no loop
            sd_notify.stopping("restoring the original settings")
            start_ahead()  # or, on a busy node, this takes so long that the supervisor counts it as hung
            self._modes.give_back()
            self._publish_notes()
            stop_being_ahead()

    def notify(self) -> None:
        """Notify the service manager that the controller is ready, and that it ticks."""
        if not self.begun and self.loop.report.ticks:
            self.begun = True
            sd_notify.ready(f"{self.loop.active.mode.label}, {self.policy.agent.name}")
        late_ns = time.monotonic_ns() - self.node.backend.ticks.deadline_ns
        if self.begun and late_ns < 1e9 * hang_s(self.config, self.node):
            sd_notify.watchdog()

    def note_signal(self, text: str) -> None:
        """Have a line about a signal logged."""
        self._signal = {"time_ns": time.time_ns(), "text": text}

    @property
    def forced(self) -> bool:
        """Whether the start's ``force`` was for the policy that there is now."""
        return self._forced is self.policy

    # -- orders, from other threads ------------------------------------------------------------------------------

    def carry_out(self, order: Order, overtaken: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Carry out an operator's order, after the controller has started; returns the resulting state. Shadow that is
        ordered before is what the controller starts in.

        Slow orders (`is_slow`) must be given in turn; all others may be given at any time, also during a slow order. If
        ``overtaken`` says that shadow has been ordered since, no mode that acts is taken up.

        Raises:
            ConfigError: it cannot be carried out; nothing has changed.
            ActuatorError: the knobs cannot be set; nothing has changed.
            LoopEndedError, TimeoutError: there is no loop that could.
        """
        if order.mode is Mode.SHADOW and not self._started.is_set():
            self._shadow_first = True
        if not self._started.wait(FIRST_TICK_S):
            then = "; it will start in shadow" if order.mode is Mode.SHADOW else ""
            raise TimeoutError(f"the controller has not started within {FIRST_TICK_S:g} s{then}")
        if order.command == "mode":
            assert order.mode is not None
            if order.mode is not Mode.SHADOW and not self._modes.is_in(order.mode, order.slices):
                self.node.require_finished(order.force)
                self.policy.require_promoted(order.force)
            self._modes.switch(order.mode, order.slices, self.policy, self.loop.mailbox.make, overtaken)
        elif order.command == "reload":
            self._reload(order)
        else:
            self.loop.mailbox.make(partial(self._ask_guard, order.command))
        self.loop.mailbox.make(self._publish_notes)
        active, guard = self.loop.active, self.loop.active.guard
        orders = {"paused": guard.paused, "ordered_safe": guard.ordered_safe}
        return {"mode": active.mode.label, "slices": list(self._modes.slices)} | orders

    def _ask_guard(self, command: str) -> None:
        """Pause, resume or the safe setting; in the loop's thread, with the guard of that time."""
        guard = self.loop.active.guard
        {"pause": guard.pause, "safe": guard.order_safe, "resume": guard.resume}[command]()
        if command == "resume":
            self._modes.resume()

    def _reload(self, order: Order) -> None:
        """Load, check and try out a new policy, guard or both, before the loop takes them."""
        from .loaded_policy import load_bundle, trial_on

        try:
            roots, policy = self.config.roots, self.policy
            config = self._guard_config if order.guard is None else GuardConfig.from_yaml(order.guard, roots)
            if order.bundle is not None:
                policy = load_bundle(order.bundle, self.config.trust, roots, trial_on(self.node, self.config))
                self._require_promoted(policy, order)
            guard = self._guard(config, policy)
            if order.bundle is not None:
                self.loop.ready(dataclasses.replace(self.loop.active, agent=policy.agent, guard=guard))

            def swap() -> None:
                requests: Any = policy.agent.request_mcpu
                present: Any = self.policy.agent.request_mcpu
                if not np.array_equal(requests, present):
                    self.node.backend.deploy(requests)
                self.loop.report.add_interventions(self.loop.active.guard)
                self._describe(policy, config)  # first, because it fails if it does not fit into the ring
                guard.in_control = bool(self._modes.slices)
                guard.follow(self.loop.active.guard)
                self.loop.active = dataclasses.replace(self.loop.active, agent=policy.agent, guard=guard)
                self.policy, self._guard_config = policy, config

            with self._modes.switching:
                if order.bundle is not None:  # the mode may have changed meanwhile
                    self._require_promoted(policy, order)
                self.loop.mailbox.make(swap)
        except BaseException as error:
            self._note_reload(False, str(error))
            raise
        self._note_reload(True, ", ".join(filter(None, (order.bundle, order.guard))))
        gc.collect()  # the loop has switched automatic collection off

    def _require_promoted(self, policy: LoadedPolicy, order: Order) -> None:
        """Check a policy that has just been read, if it would act at once."""
        if self._modes.slices:
            policy.require_promoted_as_loaded(order.force)

    def _note_reload(self, ok: bool, detail: str) -> None:
        self._last_reload = {"time_ns": time.time_ns(), "ok": ok, "detail": shortened(detail, LONGEST_DETAIL)}

    # -- what the loop does between ticks ------------------------------------------------------------------------

    def _publish_delays(self) -> None:
        self.ring.delays(self.node.backend.delay_counts())

    def _publish_notes(self) -> None:
        notes: dict[str, Any] = {}
        for part in self.notes:
            notes |= part()
        self.ring.note(notes)

    def _own_notes(self) -> dict[str, Any]:
        report, active = self.loop.report, self.loop.active
        return {
            "mode": active.mode.label,
            "paused": active.guard.paused,
            "ordered_safe": active.guard.ordered_safe,
            "unmeasured": as_many_as_fit(report.unmeasured, MOST_UNMEASURED_BYTES),
            "last_error": report.present_error,
            "counts": self.node.backend.counts(),
            "remarks": self.node.backend.remarks(),
            "totals": report.totals()
            | {"missed_ticks": self.node.backend.ticks.missed, "foreign_changes": self._modes.foreign_changes},
            "reload": self._last_reload,
            "signal": self._signal,
            "trips": trips_of(active.guard, self.slices.names),
        }

    def _describe(self, policy: LoadedPolicy | None = None, config: GuardConfig | None = None) -> None:
        """Describe what decides from the next tick on: by default what decides now."""
        own = {
            "run_id": self.run_id,
            "started_ns": self.started_ns,
            "budget_s": self.loop.budget_s,
            "scheduling": str(self.loop.report.scheduling),
        }
        self.ring.describe(own | description_of(self.node, policy or self.policy, config or self._guard_config))

    def _guard(self, config: GuardConfig, policy: LoadedPolicy) -> Guard:
        """A guard that is not in control yet."""
        context, requests = self.node.backend.context, policy.agent.request_mcpu
        guard = Guard(config, self.slices, context, policy.nice_scope, requests)
        guard.in_control = False
        return guard


def is_slow(order: Order) -> bool:
    """Whether an order reads files or starts processes."""
    return order.command == "reload" or (order.command == "mode" and order.mode is not Mode.SHADOW)


def description_of(node: Node, policy: LoadedPolicy, guard: GuardConfig) -> dict[str, Any]:
    """Node, policy and guard as JSON; None is no limit."""
    context = node.backend.context
    return {
        "name": node.name,
        "version": metadata.version("slicepilot"),
        "backend": node.kind,
        "agent": policy.agent.name,
        "bundle": policy.bundle,
        "slice_set": dataclasses.asdict(node.backend.slices),
        "period_s": context.period_s.item(),
        "logical_cpus": context.logical_cpus.item(),
        "uplink_mbps": _finite(context.uplink_mbps.item()),
        "fixed": _fixed(node),
        "own_groups": list(node.own_groups),
        "threads": context.threads[:, 0].tolist(),
        "pid": os.getpid(),
        "nice_scope": policy.nice_scope,
        "hardware": node.hardware,
        "guard": _finite(dataclasses.asdict(guard)),
    }


def trips_of(guard: Guard, names: Sequence[str]) -> list[dict[str, Any]]:
    """`answers.Trip` of each slice that has its safe setting; the guard's clock is CLOCK_MONOTONIC."""
    since_1970_ns, trips = time.time_ns() - time.monotonic_ns(), []
    for trip in guard.tripped:
        facts = trip._asdict()
        name, time_ns = names[facts.pop("slice_index")], facts.pop("began_ns") + since_1970_ns
        facts["time_ns"] = time_ns
        remedy = slice_remedy(time_ns) if trip.latched else None
        trips.append({"slice": name, **facts, "text": trip_text(**facts), "remedy": remedy})
    return trips


def _fixed(node: Node) -> dict[str, list[str]]:
    """Knobs that are never moved, by slice."""
    moves, names = node.backend.context.moves, node.backend.slices.names
    if moves is None:
        return {}
    return {name: [KNOB_FIELDS[k] for k in np.flatnonzero(~moves[:, s, 0])] for s, name in enumerate(names)}


def _finite(value: Any) -> Any:
    """The same with None for infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
