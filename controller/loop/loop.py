"""The loop: observe, infer, guard, apply, at absolute times, each stage timed."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from slicepilot.agents.base import Agent, StochasticAgent
from slicepilot.configs import ConfigError
from slicepilot.controller.contracts.modes import Mode
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.guard.guard import Guard, GuardDecision
from slicepilot.controller.record import ring as record
from slicepilot.controller.system.realtime import SchedulingClass, no_collections, on_time, pinned
from slicepilot.controller.system.signals import StopRequest
from slicepilot.env.backend import Receipt
from slicepilot.env.knobs import NUM_KNOBS, KnobName, Knobs
from slicepilot.env.sliding import SlidingView
from slicepilot.env.telemetry import Telemetry

from .live_backend import LiveBackend
from .mailbox import Mailbox
from .ticks import PeriodicTasks
from .timing import StageTimes

LONG_WAIT_NS, REST_S = 300_000_000, 0.2
"""A longer wait for the next tick is split into rests."""
STAGES = ("observe", "infer", "guard", "apply")


@dataclass(frozen=True)
class LoopConfig:
    """How the loop runs.

    Attributes:
        budget_ratio: share of the control period, from the start of observing to knobs that are ready to apply. Later
            knobs are not applied: they answer a state that is gone.
        max_ticks: end after so many ticks; none runs until it is stopped.
        lock_memory: keep all pages in memory.
        cpu: that the loop's thread runs on; none leaves that to the kernel.
        check_s: how often to look for what is not measured any more, between two ticks.
        seed: for the agent's own randomness.
    """

    budget_ratio: float = 0.5
    max_ticks: int | None = None
    lock_memory: bool = False
    cpu: int | None = None
    check_s: float = 1.0
    seed: int = 0


@runtime_checkable
class WarmsUp(Protocol):
    """An agent that can warm up.

    After some milliseconds of rest the caches, and on virtual machines the address translation, hold nothing of a loop
    that runs in microseconds: its first pass takes many times what the second takes. Rehearsing moves that time ahead
    of the tick; it costs a warm pass.
    """

    def warm_up(self, telemetry: Telemetry) -> None:
        """Decide on old telemetry and forget it; changes nothing that a later decision depends on."""


@dataclass
class ActivePolicy:
    """The policy that decides, and how; replaced between two ticks (`Mailbox`), never during a tick.

    Attributes:
        agent: has been reset for the backend.
        guard: judges each decision.
        mode: whether decisions reach the node. In shadow the guard goes on from its own last decision.
        left_alone_reasons: reason bits (S,) uint32 of slices that are left alone.
        any_left_alone: whether there are any.
        foreign: of how many slices another program has set a knob.
        draws: the agent, if it draws what it wants.
        rehearses: the agent, if it can warm up.
    """

    agent: Agent
    guard: Guard
    mode: Mode
    left_alone_reasons: npt.NDArray[np.uint32]
    any_left_alone: bool = field(init=False)
    foreign: int = field(init=False)
    draws: StochasticAgent | None = field(init=False)
    rehearses: WarmsUp | None = field(init=False)

    def __post_init__(self) -> None:
        self.draws = self.agent if isinstance(self.agent, StochasticAgent) else None
        self.rehearses = self.agent if isinstance(self.agent, WarmsUp) else None
        self.any_left_alone = bool(self.left_alone_reasons.any())
        self.foreign = int(np.count_nonzero(self.left_alone_reasons & np.uint32(Reason.FOREIGN_CHANGE.bit)))


@dataclass
class ModeCharges:
    """Ticks of a mode by what was in charge, and of those of the guard by its reason; see `LoopReport`."""

    charges: Counter[str] = field(default_factory=Counter)
    rules_in_charge: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: ModeCharges) -> ModeCharges:
        return ModeCharges(self.charges + other.charges, self.rules_in_charge + other.rules_in_charge)

    def __sub__(self, other: ModeCharges) -> ModeCharges:
        return ModeCharges(self.charges - other.charges, self.rules_in_charge - other.rules_in_charge)


@dataclass
class LoopReport:
    """The result of a run of the loop.

    Attributes:
        stages: time of each stage; ``total`` is observe to apply without waiting, ``record`` what writing it down took
            after that, ``wakeup`` how late ticks began.
        ticks: that ran.
        missed_ticks: that had gone by entirely before the tick before was done; the knobs held.
        late_ticks: that ran out of budget; the knobs held.
        unusable: decisions that the agent failed to make.
        failed_applies: receipts with an error.
        last_error: the newest failure; `recovered`: the loop's newest failure, once a while has passed without another.
        interventions: how often the guard had each reason: ticks of the node, or else of slices, added up.
        charges: ticks by what was in charge (`InCharge`); rules_in_charge: of those of the guard, by its reason.
        modes: the same of each mode that was in force, in the order of their beginning.
        acted_on: slices that a mode has acted on.
        foreign: how often another program's knob was kept: ticks of slices, added up.
        restored: what the last end of a mode that acts has put back, as a text; None before it.
        unmeasured: what could not be measured or moved at the last check, or is bound by others, and why.
        not_moved: why knobs, by slice and name, could not be moved for a part of the run.
        scheduling: class of the loop's thread.
    """

    scheduling: SchedulingClass
    stages: StageTimes = field(default_factory=lambda: StageTimes((*STAGES, "total", "record", "wakeup")))
    ticks: int = 0
    missed_ticks: int = 0
    late_ticks: int = 0
    unusable: int = 0
    failed_applies: int = 0
    last_error: str | None = None
    recovered: str | None = None
    interventions: dict[str, int] = field(default_factory=dict)
    charges: Counter[str] = field(default_factory=Counter)
    rules_in_charge: Counter[str] = field(default_factory=Counter)
    modes: dict[Mode, ModeCharges] = field(default_factory=dict)
    acted_on: set[str] = field(default_factory=set)
    foreign: int = 0
    restored: str | None = None
    unmeasured: list[str] = field(default_factory=list)
    not_moved: dict[tuple[str, KnobName], str] = field(default_factory=dict)

    @property
    def present_error(self) -> str | None:
        """The newest failure, unless that is over."""
        return None if self.last_error == self.recovered else self.last_error

    def totals(self) -> dict[str, int]:
        names = ("ticks", "missed_ticks", "late_ticks", "unusable", "failed_applies")
        return {name: getattr(self, name) for name in names}

    def mode_ends(self, mode: Mode, guard: Guard) -> None:
        """Charge a mode with the ticks since this was called last; ``guard`` has judged them, or those since a
        `add_interventions`."""
        total = ModeCharges(
            self.charges + Counter(guard.charges), self.rules_in_charge + Counter(guard.rules_in_charge)
        )
        before = sum(self.modes.values(), ModeCharges())
        if (since := total - before).charges:
            self.modes[mode] = self.modes.get(mode, ModeCharges()) + since

    def add_interventions(self, guard: Guard) -> None:
        """Take over what a guard has counted, before it goes."""
        counts: dict[str, int] = {}
        for (reason, index), count in sorted(guard.counts.items(), key=lambda entry: entry[0][1], reverse=True):
            # Where the node itself has the reason (-1, so last), its ticks count, and not those of each slice.
            counts[reason.label] = count if index < 0 else counts.get(reason.label, 0) + count
        for label, count in counts.items():
            self.interventions[label] = self.interventions.get(label, 0) + count
        self.charges.update(guard.charges)
        self.rules_in_charge.update(guard.rules_in_charge)


Watcher = Callable[[Telemetry, Knobs, Receipt], None]


class Loop:
    """Drives a node until it is stopped or its ticks are used up.

    The thread runs with a real-time class where that is permitted, without garbage collections. SIGINT, SIGTERM and
    SIGHUP end it between two ticks. The caller closes the backend, which restores the knobs.

    Args:
        backend: started by `run`, from the knobs as they are.
        active: the policy that decides; its agent is reset by `run`.
        config: budget and length.
        stop: ends the loop from outside.
        ring: where each tick is written down; None: nowhere.
        watch: called after each tick, outside the timed stages, with what was seen, what was allowed and the receipt.
            The arrays hold until the next tick.

    Attributes:
        mailbox: for other threads that want something changed between ticks.
        periodic_tasks: for what else has to be done between ticks.
        report: what has happened so far, from the start of `run`.
        held: knobs that the guard works on from.
    """

    def __init__(
        self,
        backend: LiveBackend,
        active: ActivePolicy,
        config: LoopConfig | None = None,
        stop: StopRequest | None = None,
        ring: record.TickRing | None = None,
        watch: Watcher | None = None,
    ) -> None:
        self.backend, self.active, self.config = backend, active, config or LoopConfig()
        self.stop, self.ring, self.watch = stop or StopRequest(), ring, watch
        self.mailbox, self.periodic_tasks = Mailbox(), PeriodicTasks()
        # First: tasks that are added later show its result.
        self.periodic_tasks.add(self._check, self.config.check_s)
        for task, every_s in backend.tasks:
            self.periodic_tasks.add(task, every_s)
        self.report = LoopReport(SchedulingClass("unchanged"))
        self.held = Knobs.none(len(backend.slices))
        self._warm_up_telemetry = Telemetry.empty(len(backend.slices))
        self._view: SlidingView | None = None
        self._failed_at_tick, self._failure = 0, ""
        self._no_decision = Knobs(np.full((NUM_KNOBS, len(backend.slices), 1), np.nan, np.float32))

    @property
    def budget_s(self) -> float:
        """Time for a decision, see `LoopConfig`."""
        return self.config.budget_ratio * self.backend.context.period_s.item()

    def prepare(self) -> None:
        """Everything that is slow the first time: the backend's start, the first decision. `run` does it too."""
        backend = self.backend
        backend.deploy(self.active.agent.request_mcpu)
        telemetry = backend.start(self.config.seed)
        self.held = backend.receipt.applied
        self._warm_up_telemetry = telemetry.copy()
        self.ready(self.active)
        self._view = SlidingView(backend.context)

    def run(self, begin: Callable[[], object] | None = None) -> LoopReport:
        """Tick until it is stopped; ``begin`` is called before the first tick, when the scheduling class is known."""
        backend, config = self.backend, self.config
        if self._view is None:
            self.prepare()
        try:
            with self.stop, no_collections(), pinned(config.cpu), on_time(config.lock_memory) as scheduling:
                self.report.scheduling = scheduling
                if begin is not None:
                    begin()
                self._ticks()
        finally:
            self.mailbox.end()
        self.report.not_moved |= backend.not_moved
        self.report.mode_ends(self.active.mode, self.active.guard)
        self.report.add_interventions(self.active.guard)
        if self.report.foreign:  # which the guard does not know of
            self.report.interventions[Reason.FOREIGN_CHANGE.label] = self.report.foreign
        self.report.missed_ticks = backend.ticks.missed
        return self.report

    def ready(self, active: ActivePolicy) -> None:
        """Let a policy do once, and forget, what it will do at each tick: first calls allocate and compile.

        Raises:
            ConfigError: it cannot decide.
        """
        backend, seed = self.backend, self.config.seed
        active.agent.reset(backend.slices, backend.context, seed)
        try:
            wanted = active.agent.decide(self._warm_up_telemetry, self.held)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise ConfigError(f"policy {active.agent.name!r}: its first decision fails: {what}") from error
        active.guard.warm_up(self._warm_up_telemetry, wanted, self.held)
        active.agent.reset(backend.slices, backend.context, seed)

    def _warm_up(self) -> None:
        """Go through what the tick will do, as far as it can be done without effect."""
        active, telemetry, held = self.active, self._warm_up_telemetry, self.held
        assert self._view is not None
        self.backend.warm_up()
        self._view.warm_up(telemetry)
        if active.rehearses is not None:
            with contextlib.suppress(Exception):  # it will fail again at the tick, where that is counted
                active.rehearses.warm_up(telemetry)
        active.guard.warm_up(telemetry, held, held)

    def _check(self) -> None:
        self.report.not_moved |= self.backend.not_moved
        self.report.unmeasured = self.backend.check()
        ticks_between = max(1.0, self.config.check_s / self.backend.context.period_s.item())
        if self._failure and self.report.ticks - self._failed_at_tick > ticks_between:
            self.report.recovered = self._failure

    def _fail(self, what: str) -> None:
        self._failed_at_tick, self._failure = self.report.ticks, what
        self.report.last_error, self.report.recovered = what, None

    def _decide(self, seen: Telemetry, knobs: Knobs) -> Knobs | None:
        moves = self.backend.context.moves
        try:
            wanted = self.active.agent.decide(seen, knobs)
            return wanted if moves is None else wanted.only(moves, self.held)
        except Exception as error:  # noqa: BLE001 (whatever a policy does, the guard goes on)
            self.report.unusable += 1
            self._fail(f"{type(error).__name__}: {error}")
            return None

    def _ticks(self) -> None:
        backend, config, report, mailbox = self.backend, self.config, self.report, self.mailbox
        view = self._view
        assert view is not None
        note, periodic_tasks = report.stages.note, self.periodic_tasks
        # Looked up once: an enumeration's members are not plain attributes.
        shadow, warm_up = Mode.SHADOW, self._warm_up
        now, budget_ns = time.monotonic_ns, round(self.budget_s * 1e9)
        receipt = backend.receipt
        backend.ticks.restart()
        backend.ticks.missed = 0
        periodic_tasks.start(now())
        while not self.stop.requested and report.ticks != config.max_ticks:
            if backend.ticks.period_ns > LONG_WAIT_NS:
                self._rest()
                receipt = backend.receipt
                if self.stop.requested:
                    break
            # In shadow nothing waits for a decision: rehearsals would only cost.
            late_ns = backend.wait(None if self.active.mode is shadow else warm_up)
            start = now()
            telemetry = backend.measure()
            seen = view.see(telemetry)
            observed = now()
            wanted = self._decide(seen, receipt.applied)
            inferred = now()
            active = self.active
            powerless = backend.powerless and active.mode is not shadow
            if powerless != active.guard.powerless:
                active.guard.powerless = powerless
            verdict = active.guard.judge(telemetry, wanted, self.held, start)
            guarded = now()
            late = guarded - start > budget_ns
            # A late decision answers a state that is gone; the safe setting answers any.
            if not late or verdict.urgent:
                receipt = backend.apply(verdict.allowed)
            if late:
                report.late_ticks += 1
                active.guard.overran(guarded)
            self.held = verdict.allowed if active.mode is shadow else receipt.applied
            applied = now()
            report.ticks += 1
            report.foreign += active.foreign
            if receipt.error is not None:
                report.failed_applies += 1
                self._fail(receipt.error)
            stages_ns = (observed - start, inferred - observed, guarded - inferred, applied - guarded)
            if self.ring is not None:
                self._write(self.ring, start, late_ns, stages_ns, telemetry, wanted, verdict, receipt, late)
            recorded = now()
            note(*stages_ns, applied - start, recorded - applied, late_ns)
            if self.watch is not None:
                self.watch(telemetry, verdict.allowed, receipt)
            if mailbox.pending:
                mailbox.take()
                receipt = backend.receipt
            if recorded >= periodic_tasks.due_ns:
                self._run_periodic_task(recorded)

    def _rest(self) -> None:
        """Wait during a long period, except at its end, while handling orders, stop requests and periodic tasks."""
        backend, mailbox, periodic_tasks = self.backend, self.mailbox, self.periodic_tasks
        while not self.stop.requested and backend.ticks.left_ns() > LONG_WAIT_NS:
            time.sleep(REST_S)
            if self.ring is not None:
                self.ring.beat()
            if mailbox.pending:
                mailbox.take()
            now_ns = time.monotonic_ns()
            while now_ns >= periodic_tasks.due_ns:  # all that are due: no tick waits here
                self._run_periodic_task(now_ns)

    def _run_periodic_task(self, now_ns: int) -> None:
        try:
            self.periodic_tasks.run_one(now_ns)
        except Exception as error:  # noqa: BLE001 (what is done between ticks must not end them)
            self._fail(f"{type(error).__name__}: {error}")

    def _write(
        self,
        ring: record.TickRing,
        start_ns: int,
        late_ns: int,
        stages_ns: tuple[int, int, int, int],
        telemetry: Telemetry,
        wanted: Knobs | None,
        verdict: GuardDecision,
        receipt: Receipt,
        late: bool,
    ) -> None:
        active = self.active
        flags = (
            late * record.LATE
            | (wanted is None) * record.UNUSABLE
            | (receipt.error is not None) * record.APPLY_ERROR
            | active.guard.powerless * record.POWERLESS
        )
        log_density, drawn = math.nan, None
        if active.draws is not None:
            flags |= active.draws.held * record.HELD
            if wanted is not None:
                log_density, drawn = float(active.draws.log_density[0]), active.draws.wanted[0]
        ring.write(
            record.Tick(
                time.time_ns(),
                start_ns,
                active.mode,
                verdict.level,
                flags,
                verdict.node_reasons,
                self.backend.ticks.missed,
                late_ns,
                *stages_ns,
                log_density,
            ),
            telemetry,
            self._no_decision if wanted is None else wanted,
            verdict.allowed,
            receipt.applied,
            verdict.reasons | active.left_alone_reasons if active.any_left_alone else verdict.reasons,
            drawn,
        )
