"""Clock, histograms, guard and signals of the loop: what needs neither root nor a node."""

from __future__ import annotations

import gc
import math
import os
import signal
import threading
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.controller.loop.mailbox import LoopEndedError, Mailbox
from slicepilot.controller.loop.ticks import AbsoluteTicks, PeriodicTasks
from slicepilot.controller.loop.timing import ROWS, StageTimes
from slicepilot.controller.system.realtime import no_collections, on_time
from slicepilot.controller.system.signals import StopRequest

# -- times of stages ------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(-5, 10**11), st.integers(0, 10**6)), max_size=2 * ROWS + 7))
def test_quantiles_of_stages_are_right_within_a_bucket(rows: list[tuple[int, int]]) -> None:
    times = StageTimes(("observe", "infer"))
    for row in rows:
        times.note(*row)
    for stage, durations in zip(("observe", "infer"), zip(*rows, strict=True) if rows else ((), ()), strict=True):
        figures = times.summary_us()[stage]
        for level, value in zip((0.5, 0.99, 0.999), figures.values(), strict=True):
            assert math.isnan(value) == (not rows)
            if rows:
                exact = sorted(durations)[max(math.ceil(level * len(durations)) - 1, 0)]
                assert value == pytest.approx(max(exact, 0) / 1e3, rel=0.07, abs=0.07)


# -- periodic tasks ----------------------------------------------------------------------------------------------------


def test_tasks_run_when_they_are_due_and_say_when_the_next_is_due() -> None:
    periodic_tasks, called = PeriodicTasks(), list[str]()
    periodic_tasks.add(lambda: called.append("a"), 1e-6)
    periodic_tasks.add(lambda: called.append("b"), 3e-6)
    periodic_tasks.start(0)
    assert periodic_tasks.due_ns == 1000
    for now_ns in range(0, 6_501, 500):
        due = periodic_tasks.due_ns <= now_ns
        before = len(called)
        periodic_tasks.run_one(now_ns)
        assert (len(called) > before) == due
    assert "".join(called) == "aaabaaab"
    periodic_tasks.add(lambda: called.append("c"), 1.0)
    assert periodic_tasks.due_ns == 0, "of what is new, at once"


# -- clock -------------------------------------------------------------------------------------------------------


@pytest.mark.realtime
def test_tasks_of_an_interval_keep_their_order_beside_tasks_of_another() -> None:
    """What is looked at is shown by a task that was added later, and not a whole interval afterwards."""
    tasks, called = PeriodicTasks(), list[str]()
    for name, every_s in (("look", 1.0), ("often", 0.3), ("show", 1.0)):
        tasks.add(partial(called.append, name), every_s)
    tasks.start(0)
    for now_ns in range(0, 10_000_000_000, 10_000_000):
        tasks.run_one(now_ns)
    assert [name for name in called if name != "often"] == ["look", "show"] * 9
    assert called.count("often") > 25


def test_ticks_do_not_drift_with_the_work_between_them() -> None:
    ticks = AbsoluteTicks(0.004)
    origin = ticks.deadline_ns
    for _ in range(25):
        assert ticks.wait() >= 0
        time.sleep(0.001)
    assert (ticks.deadline_ns - origin) % ticks.period_ns == 0
    assert ticks.deadline_ns - origin == (25 + ticks.missed) * ticks.period_ns
    assert time.monotonic_ns() >= ticks.deadline_ns


@pytest.mark.realtime
def test_ticks_that_have_gone_by_are_skipped_and_counted() -> None:
    ticks = AbsoluteTicks(0.01)
    origin = ticks.deadline_ns
    time.sleep(0.035)
    late_ns = ticks.wait()
    assert ticks.missed >= 2
    assert ticks.deadline_ns - origin == (ticks.missed + 1) * ticks.period_ns
    assert late_ns == pytest.approx(time.monotonic_ns() - ticks.deadline_ns, abs=5e6)


def test_a_signal_during_the_wait_is_seen_and_the_tick_comes_at_its_time() -> None:
    ticks = AbsoluteTicks(0.2)
    start = time.monotonic()
    with StopRequest() as stop:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        ticks.wait()
    assert stop.requested
    assert time.monotonic() - start >= 0.2


# -- signals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_second_signal_interrupts_and_handlers_come_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopRequest() as stop:
        signal.raise_signal(number)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


# -- scheduling --------------------------------------------------------------------------------------------------


def test_scheduling_class_and_collector_come_back() -> None:
    before = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), gc.isenabled()
    with no_collections(), on_time() as chosen:
        inside = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
        assert not gc.isenabled()
        if chosen.name == "SCHED_FIFO":
            assert inside == os.SCHED_FIFO
        elif chosen.name == "nice -20":
            assert os.getpriority(os.PRIO_PROCESS, 0) == -20
            assert chosen.reason
        else:
            assert (inside, str(chosen)) == (before[0], f"unchanged ({chosen.reason})")
    assert (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), gc.isenabled()) == before


# -- mailbox -----------------------------------------------------------------------------------------------------


def test_a_change_that_timed_out_is_never_made_and_ends_no_other() -> None:
    mailbox, made = Mailbox(), list[str]()
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        mailbox.make(lambda: made.append("late"), 0.01)
    waiting = threading.Thread(target=mailbox.make, args=(lambda: made.append("next"),))
    waiting.start()
    while len(mailbox.pending) < 2:
        time.sleep(0.001)
    mailbox.take()
    assert waiting.is_alive(), "what was withdrawn answers for itself alone"
    mailbox.take()
    waiting.join(5.0)
    assert made == ["next"]


def test_a_change_that_the_loop_has_begun_is_waited_for_past_its_time() -> None:
    mailbox, begun, go_on, answers = Mailbox(), threading.Event(), threading.Event(), list[str]()

    def change() -> None:
        begun.set()
        go_on.wait(5.0)

    def ask() -> None:
        mailbox.make(change, 0.05)
        answers.append("made")

    asking = threading.Thread(target=ask)
    asking.start()
    while not mailbox.pending:
        time.sleep(0.001)
    loop = threading.Thread(target=mailbox.take)
    loop.start()
    begun.wait(5.0)
    time.sleep(0.1)  # longer than it waits for the loop to begin
    assert answers == []
    go_on.set()
    asking.join(5.0)
    loop.join(5.0)
    assert answers == ["made"]
    mailbox.end()
    with pytest.raises(LoopEndedError):
        mailbox.make(lambda: None)
