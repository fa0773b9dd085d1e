"""Nice of process scope: the nice value of every thread in a slice's cgroup.

It ranks tasks inside one cpu cgroup only. Slices that each have their own group - pods have - do not feel it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from .cgroup import CpuGroup
from .kernel_file import ActuatorError

# How often threads that have appeared meanwhile are looked for.
RELIST_NS = 100_000_000


class ThreadNice:
    """Renices all threads of all processes in a group, also those that appear later, at a `set` soon after.

    The list of threads is opened anew for each reading: for a descriptor that stays open cgroup v1 keeps handing out an
    old list for a second after the last reading (kernel/cgroup/cgroup-v1.c, CGROUP_PIDLIST_DESTROY_DELAY).

    What a thread had when it was first seen is remembered. A thread that its process started under our nice has
    inherited it, so its original is the one of its process.

    Raises:
        ActuatorError: the thread list cannot be read, or a thread cannot be reniced (a thread that has ended is not
            an error).
    """

    def __init__(self, group: CpuGroup) -> None:
        self._file = group.threads_file
        self._listed_ns = 0
        self._nice: int | None = None
        self._original: dict[int, int] = {}
        self._process_original: dict[int, int] = {}

    @property
    def active(self) -> bool:
        """Whether a level has been set and not yet restored."""
        return self._nice is not None

    def set(self, nice: int) -> int:
        """Renice every thread that does not have this level yet; returns it."""
        now_ns = time.monotonic_ns()
        if nice == self._nice and now_ns - self._listed_ns < RELIST_NS:
            return nice
        threads, before, self._nice = self._threads(), self._nice, nice
        for thread in threads:
            current = _nice_of(thread)
            if current is None or not (thread in self._original or self._remember(thread, current, before)):
                continue
            if current != nice:
                _renice(thread, nice)
        self._original = {thread: self._original[thread] for thread in threads if thread in self._original}
        self._listed_ns = now_ns
        return nice

    def read(self) -> int:
        """The nice of the group's first thread; 0 if it has none."""
        for thread in self._threads():
            nice = _nice_of(thread)
            if nice is not None:
                return nice
        return 0

    def restore(self) -> None:
        """Every thread as it was; those that have ended are skipped."""
        if self._nice is None:
            return
        for thread in self._threads():
            current = _nice_of(thread)
            if current is not None and (thread in self._original or self._remember(thread, current, self._nice)):
                _renice(thread, self._original[thread])
        self._nice = None
        self._original.clear()
        self._process_original.clear()

    def _threads(self) -> list[int]:
        try:
            return [int(thread) for thread in self._file.read_bytes().split()]
        except OSError as error:
            raise ActuatorError.of(f"{self._file}: read", error) from error

    def _remember(self, thread: int, current: int, ours: int | None) -> bool:
        """Note the original nice of a thread that has ``current`` now, under ``ours`` before; false if it has ended."""
        process = _process_of(thread)
        if process is None:
            return False
        inherited = current == ours and process in self._process_original
        self._original[thread] = original = self._process_original[process] if inherited else current
        if thread == process or process not in self._process_original:
            self._process_original[process] = original
        return True


def _nice_of(thread: int) -> int | None:
    try:
        return os.getpriority(os.PRIO_PROCESS, thread)
    except ProcessLookupError:
        return None


def _renice(thread: int, nice: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, thread, nice)
    except ProcessLookupError:
        return
    except OSError as error:
        raise ActuatorError.of(f"thread {thread}: nice {nice}", error) from error


def _process_of(thread: int) -> int | None:
    """The process (thread group) of a thread: the Tgid line of proc_pid_status(5)."""
    try:
        for line in Path(f"/proc/{thread}/status").read_text().splitlines():
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return None
