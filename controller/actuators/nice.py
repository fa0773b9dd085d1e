"""Nice of process scope: the nice value of every thread in a slice's cgroup.

It ranks tasks inside one cpu cgroup only. Slices that each have their own group - pods have - do not feel it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.processes import process_of, start_ticks

# How often threads that have appeared meanwhile are looked for.
RELIST_NS = 100_000_000


@dataclass(frozen=True)
class ThreadOriginal:
    """The nice a thread had before we touched it; ``start_ticks`` distinguishes it from later threads of its number."""

    thread: int
    process: int
    start_ticks: int
    nice: int


class ThreadNice:
    """Renices all threads of all processes in a group, also those that appear later, at a `set` soon after.

    The list of threads is opened anew for each reading: for a descriptor that stays open cgroup v1 keeps handing out an
    old list for a second after the last reading (kernel/cgroup/cgroup-v1.c, CGROUP_PIDLIST_DESTROY_DELAY).

    What a thread had when it was first seen is remembered. A thread that its process started under our nice has
    inherited it, so its original is that of its process. A thread that somebody else has reniced since is left
    alone until `reassert`.

    Args:
        group: whose threads.
        remember: called with the originals of threads seen for the first time, before any of them is reniced; what it
            raises keeps them from being reniced.

    Raises:
        ActuatorError: the thread list cannot be read, or a thread cannot be reniced (a thread that has ended is not
            an error).
    """

    def __init__(self, group: CpuGroup, remember: Callable[[Sequence[ThreadOriginal]], None] | None = None) -> None:
        self._file, self._remember = group.threads_file, remember
        self._listed_ns = 0
        self._nice: int | None = None
        self._original: dict[int, ThreadOriginal] = {}
        self._process_original: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._foreign: dict[int, int] = {}

    @property
    def active(self) -> bool:
        """Whether a level has been set and not yet restored."""
        return self._nice is not None

    def set(self, nice: int) -> int:
        """Renice every thread that does not have this level yet; returns it."""
        now_ns = time.monotonic_ns()
        if nice == self._nice and now_ns - self._listed_ns < RELIST_NS:
            return nice
        levels = self._levels()
        known: dict[int, ThreadOriginal] | dict[int, int]
        for known in (self._original, self._written, self._foreign):
            for thread in known.keys() - levels.keys():
                del known[thread]
        fresh = [item for thread, current in levels.items() if (item := self._first_seen(thread, current)) is not None]
        if fresh and self._remember is not None:
            self._remember(fresh)
        self._nice = nice
        for original in fresh:
            self._original[original.thread] = original
        for thread, current in levels.items():
            if current != self._written.get(thread, current):
                self._foreign[thread] = current
            elif thread in self._original:
                self._foreign.pop(thread, None)
                if current != nice:
                    renice(thread, nice)
                self._written[thread] = nice
        self._listed_ns = now_ns
        return nice

    def read(self) -> int:
        """The nice of the group's first thread; 0 if it has none."""
        for thread in self._threads():
            nice = nice_of(thread)
            if nice is not None:
                return nice
        return 0

    def deviation(self) -> str | None:
        if not self._foreign:
            return None
        [thread, current], *rest = self._foreign.items()
        more = f" and {len(rest)} more" if rest else ""
        return f"thread {thread}{more}: nice {current} instead of {self._nice}"

    def adopt(self) -> int:
        """Leave threads as another program has reniced them; returns the nice of the first thread."""
        return self.read()

    def reassert(self) -> int:
        """Renice again the threads that another program has reniced; returns the level."""
        if self._nice is None:
            return self.read()
        self._foreign.clear()
        self._written.clear()
        self._listed_ns = 0
        return self.set(self._nice)

    def restore(self) -> None:
        if self._nice is None:
            return
        for thread, current in self._levels().items():
            original = self._original.get(thread) or self._first_seen(thread, current)
            if original is not None and current != original.nice:
                renice(thread, original.nice)
        self._nice = None
        for known in (self._original, self._process_original, self._written, self._foreign):
            known.clear()

    def _levels(self) -> dict[int, int]:
        return {thread: nice for thread in self._threads() if (nice := nice_of(thread)) is not None}

    def _threads(self) -> list[int]:
        try:
            return [int(thread) for thread in self._file.read_bytes().split()]
        except OSError as error:
            raise ActuatorError.of(f"{self._file}: read", error) from error

    def _first_seen(self, thread: int, current: int) -> ThreadOriginal | None:
        """The original of a thread not seen before, that has ``current`` now; None if it was seen or has ended."""
        if thread in self._original:
            return None
        process, started = process_of(thread), start_ticks(thread)
        if process is None or started is None:
            return None
        inherited = current == self._nice and process in self._process_original
        nice = self._process_original[process] if inherited else current
        if thread == process or process not in self._process_original:
            self._process_original[process] = nice
        return ThreadOriginal(thread, process, started, nice)


def nice_of(thread: int) -> int | None:
    """The nice level of a thread; None where it has ended."""
    try:
        return os.getpriority(os.PRIO_PROCESS, thread)
    except ProcessLookupError:
        return None


def renice(thread: int, nice: int) -> None:
    """Set a thread's nice level, unless it has ended; raises ActuatorError."""
    try:
        os.setpriority(os.PRIO_PROCESS, thread, nice)
    except ProcessLookupError:
        return
    except OSError as error:
        raise ActuatorError.of(f"thread {thread}: nice {nice}", error) from error
