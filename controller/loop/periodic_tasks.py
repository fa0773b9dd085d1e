"""What has to be done about once a second between ticks, one thing after a tick at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class _Chore:
    call: Callable[[], object]
    every_ns: int
    due_ns: int = 0


class PeriodicTasks:
    """Spreads periodic_tasks over ticks, so that together they never take more of a period than the longest of them.

    Attributes:
        due_ns: when `run_one` will have something to do; a plain attribute, so that looking costs the loop nothing.
    """

    def __init__(self) -> None:
        self._chores: list[_Chore] = []
        self._next = 0
        self.due_ns = 0

    def add(self, call: Callable[[], object], every_s: float) -> None:
        """Have something called about every so many seconds."""
        self._chores.append(_Chore(call, round(every_s * 1e9)))
        self.due_ns = 0

    def start(self, now_ns: int) -> None:
        """Nothing is due before its time from now."""
        for task in self._chores:
            task.due_ns = now_ns + task.every_ns
        self._look_ahead()

    def run_one(self, now_ns: int) -> None:
        """Call the first task that is due, in turn; raises what it raises."""
        periodic_tasks = self._chores
        for _ in periodic_tasks:
            task = periodic_tasks[self._next]
            self._next = (self._next + 1) % len(periodic_tasks)
            if task.due_ns <= now_ns:
                task.due_ns = now_ns + task.every_ns
                self._look_ahead()
                task.call()
                return

    def _look_ahead(self) -> None:
        self.due_ns = min((task.due_ns for task in self._chores), default=1 << 62)
