"""The loop: observe, infer, guard, apply, at absolute times, each stage timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, runtime_checkable

from ..agents.base import Agent
from ..env.backend import Receipt
from ..env.knobs import Knobs
from ..env.sliding import SlidingView
from ..env.telemetry import Telemetry
from .guard import Bounds
from .live import LiveBackend
from .realtime import SchedulingClass, no_collections, on_time
from .signals import StopRequest
from .timing import DurationHistogram

STAGES = ("observe", "infer", "guard", "apply")


@dataclass(frozen=True)
class LoopConfig:
    """How the loop runs.

    Attributes:
        budget_s: from the start of observing to knobs that are ready to apply. Later ones are not applied: they answer
            a state that is gone.
        max_ticks: end after so many ticks; none runs until it is stopped.
        lock_memory: keep all pages in memory.
        prime: rehearse measurement and decision (of an agent that can, `Primed`) just before each tick.
        check_s: how often to look for what is not measured any more, between two ticks.
        seed: for the agent's own randomness.
    """

    budget_s: float = 0.002
    max_ticks: int | None = None
    lock_memory: bool = False
    prime: bool = True
    check_s: float = 1.0
    seed: int = 0


@dataclass
class LoopReport:
    """What a run of the loop did.

    Attributes:
        stages: time of each stage; ``total`` is observe to apply without waiting, ``wakeup`` how late ticks began.
        ticks: that ran.
        missed_ticks: that had gone by entirely before the last one was done; the knobs held.
        late_ticks: that ran out of budget; the knobs held.
        unusable: decisions that were not numbers; the knobs held.
        clamped: decisions that were moved to a bound.
        failed_applies: receipts with an error; `last_error` is the newest.
        unmeasured: what could not be measured at the last check, and why.
        scheduling: class of the loop's thread.
    """

    scheduling: SchedulingClass
    stages: dict[str, DurationHistogram] = field(
        default_factory=lambda: {stage: DurationHistogram() for stage in (*STAGES, "total", "wakeup")}
    )
    ticks: int = 0
    missed_ticks: int = 0
    late_ticks: int = 0
    unusable: int = 0
    clamped: int = 0
    failed_applies: int = 0
    last_error: str | None = None
    unmeasured: list[str] = field(default_factory=list)


@runtime_checkable
class Primed(Protocol):
    """An agent that can rehearse.

    After some milliseconds of rest the caches, and on virtual machines the address translation, hold nothing of a loop
    that runs in microseconds: its first pass takes many times what the second takes. Rehearsing moves that time ahead
    of the tick; it costs one warm pass more.
    """

    def prime(self, telemetry: Telemetry) -> None:
        """Decide on old telemetry and forget it; changes nothing that a later decision depends on."""
        ...


Watcher = Callable[[Telemetry, Knobs, Receipt], None]


def run_loop(
    backend: LiveBackend,
    agent: Agent,
    config: LoopConfig | None = None,
    stop: StopRequest | None = None,
    watch: Watcher | None = None,
) -> LoopReport:
    """Drive a node with an agent until ``stop`` is asked for or the ticks are used up.

    The thread runs with a real-time class where that is permitted, without garbage collections. SIGINT, SIGTERM and
    SIGHUP end it between two ticks. The caller closes the backend, which restores the knobs.

    Args:
        backend: reset here.
        agent: reset here.
        config: budget and length.
        stop: ends the loop from outside.
        watch: called after each tick, outside the timed stages, with what was seen, what was wanted and the receipt.
            The arrays hold until the next tick.
    """
    config, stop = config or LoopConfig(), stop or StopRequest()
    guard = Bounds(backend.slices)
    backend.deploy(agent.request_mcpu)
    telemetry = backend.reset(config.seed)
    agent.reset(backend.slices, backend.context, config.seed)
    held = backend.apply(Knobs.none(len(backend.slices))).applied
    view = SlidingView(backend.context)
    agent.decide(telemetry, held)  # first calls allocate and compile; they belong before the first tick
    agent.reset(backend.slices, backend.context, config.seed)
    if config.prime:
        backend.before_ticks(partial(_rehearse, backend, view, agent, guard, telemetry.copy(), held))
    try:
        with stop, no_collections(), on_time(config.lock_memory) as scheduling:
            report = LoopReport(scheduling)
            _ticks(backend, view, agent, guard, config, stop, watch, report)
    finally:
        backend.before_ticks(None)
    report.clamped, report.unusable = guard.clamped, report.unusable + guard.held
    report.missed_ticks = backend.ticks.missed
    return report


def _rehearse(
    backend: LiveBackend, view: SlidingView, agent: Agent, guard: Bounds, telemetry: Telemetry, knobs: Knobs
) -> None:
    """Go through what the tick will do, as far as it can be done without effect."""
    backend.rehearse()
    view.rehearse(telemetry)
    guard.allows(knobs)
    if isinstance(agent, Primed):
        agent.prime(telemetry)


def _ticks(
    backend: LiveBackend,
    view: SlidingView,
    agent: Agent,
    guard: Bounds,
    config: LoopConfig,
    stop: StopRequest,
    watch: Watcher | None,
    report: LoopReport,
) -> None:
    observe, infer, check, act = (report.stages[stage].record for stage in STAGES)
    total, wakeup = report.stages["total"].record, report.stages["wakeup"].record
    now, budget_ns = time.perf_counter_ns, round(config.budget_s * 1e9)
    check_ns = round(config.check_s * 1e9)
    receipt = backend.apply(Knobs.none(len(backend.slices)))
    checked = now()
    backend.ticks.restart()
    backend.ticks.missed = 0
    while not stop.asked and report.ticks != config.max_ticks:
        late_ns = backend.wait()
        start = now()
        telemetry = backend.measure()
        seen = view.see(telemetry)
        observed = now()
        try:
            wanted = agent.decide(seen, receipt.applied)
        except ValueError:  # a decision that is not a number
            report.unusable += 1
            wanted = receipt.applied
        inferred = now()
        allowed = guard.check(wanted, receipt.applied)
        guarded = now()
        if guarded - start <= budget_ns:
            receipt = backend.apply(allowed)
        else:
            report.late_ticks += 1
        applied = now()
        report.ticks += 1
        if receipt.error is not None:
            report.failed_applies += 1
            report.last_error = receipt.error
        observe(observed - start)
        infer(inferred - observed)
        check(guarded - inferred)
        act(applied - guarded)
        total(applied - start)
        wakeup(late_ns)
        if watch is not None:
            watch(telemetry, wanted, receipt)
        if applied - checked >= check_ns:
            checked, report.unmeasured = applied, backend.check()
