"""Ticks at absolute times, so that neither work nor late wake-ups make the clock drift; and tasks between them."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass

_CLOCK_MONOTONIC, _TIMER_ABSTIME = 1, 1  # linux/time.h
_NS = 1_000_000_000
# Preparation starts ahead of a tick by this much of what it took, averaged over about 1 / gain ticks.
LEAD_RATIO, LEAD_GAIN, FIRST_LEAD_NS = 1.25, 0.1, 500_000


class AbsoluteTicks:
    """Deadlines one period apart on CLOCK_MONOTONIC (clock_nanosleep(2) with TIMER_ABSTIME).

    `time.sleep` takes a time span: a thread that is preempted between reading the clock and sleeping wakes too late.

    Attributes:
        period_ns: between ticks.
        deadline_ns: of the current tick.
        missed: ticks that had gone by entirely when they were waited for.
    """

    def __init__(self, period_s: float) -> None:
        self.period_ns = round(period_s * _NS)
        self.missed = 0
        self._sleep = ctypes.CDLL(None, use_errno=False).clock_nanosleep
        self._until = array("l", (0, 0))  # struct timespec: seconds, nanoseconds
        self._address = ctypes.c_void_p(self._until.buffer_info()[0])
        self._lead_ns = FIRST_LEAD_NS
        self.restart()

    def restart(self) -> None:
        self.deadline_ns = time.monotonic_ns()

    def left_ns(self) -> int:
        """Until the next tick; negative if that has gone by."""
        return self.deadline_ns + self.period_ns - time.monotonic_ns()

    def wait(self, prepare: Callable[[], None] | None = None) -> int:
        """Sleep until the next tick; returns how late it is, in ns. Ticks that have gone by are skipped and counted.

        ``prepare`` is called just before the tick, as early as its own past durations say it has to be, at most a
        quarter of a period. What is then left until the tick is spun away: a CPU that went to sleep would lose what
        was prepared.

        A signal handler runs as soon as the signal comes, and if it raises, so does this.
        """
        deadline_ns = self.deadline_ns + self.period_ns
        late_ns = time.monotonic_ns() - deadline_ns
        if late_ns >= self.period_ns:
            skipped = late_ns // self.period_ns
            self.missed += skipped
            deadline_ns += skipped * self.period_ns
        self.deadline_ns = deadline_ns
        if late_ns < 0 and prepare is None:
            self._sleep_until(deadline_ns)
        elif late_ns < 0 and prepare is not None:
            self._sleep_until(deadline_ns - self._lead_ns)
            start_ns = time.monotonic_ns()
            prepare()
            wanted_ns = min((time.monotonic_ns() - start_ns) * LEAD_RATIO, self.period_ns // 4)
            self._lead_ns += round((wanted_ns - self._lead_ns) * LEAD_GAIN)
            while time.monotonic_ns() < deadline_ns:
                pass
        return time.monotonic_ns() - deadline_ns

    def _sleep_until(self, when_ns: int) -> None:
        self._until[0], self._until[1] = divmod(when_ns, _NS)
        while (error := self._sleep(_CLOCK_MONOTONIC, _TIMER_ABSTIME, self._address, None)) == errno.EINTR:
            pass
        if error:
            raise OSError(error, os.strerror(error), "clock_nanosleep")


@dataclass
class _Task:
    call: Callable[[], object]
    every_ns: int
    due_ns: int = 0


class PeriodicTasks:
    """Spreads periodic tasks over ticks, so that together they never take more of a period than the longest of them.

    Attributes:
        due_ns: when `run_one` will have something to do; a plain attribute, so that looking costs the loop nothing.
    """

    def __init__(self) -> None:
        self._tasks: list[_Task] = []
        self.due_ns = 0

    def add(self, call: Callable[[], object], every_s: float) -> None:
        """Have something called about every so many seconds."""
        self._tasks.append(_Task(call, round(every_s * 1e9)))
        self.due_ns = 0

    def start(self, now_ns: int) -> None:
        """Nothing is due before its time from now."""
        for task in self._tasks:
            task.due_ns = now_ns + task.every_ns
        self._look_ahead()

    def run_one(self, now_ns: int) -> None:
        """Call the task that has been due for longest, if any, of equals the first that was added; raises what it
        raises. So tasks of the same interval keep their order, whatever other intervals there are."""
        task = min(self._tasks, key=lambda task: task.due_ns, default=None)
        if task is not None and task.due_ns <= now_ns:
            task.due_ns = now_ns + task.every_ns
            self._look_ahead()
            task.call()

    def _look_ahead(self) -> None:
        self.due_ns = min((task.due_ns for task in self._tasks), default=1 << 62)
