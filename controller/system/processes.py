"""Identifies processes by number and start time, since numbers are reused."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from .kernel_file import kernel_lines

SCHED_DEADLINE = 6  # linux/sched.h
PF_EXITING = 0x4  # include/linux/sched.h


def start_ticks(task: int) -> int | None:
    """When a process or thread started, in clock ticks since boot (proc_pid_stat(5)); None if it has ended.

    One that is ending counts as ended: it may have left its cgroup already.
    """
    try:
        # The second field, the name in brackets, may contain anything.
        state, *rest = Path(f"/proc/{task}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in b"ZX" or int(rest[5]) & PF_EXITING else int(rest[18])


def real_time_share(pid: int) -> tuple[int, int]:
    """How many threads of a process the scheduler runs in real time or by deadline, and of how many.

    Neither quotas nor weights nor nice levels act on those (sched(7); Documentation/admin-guide/cgroup-v2.rst, "CPU").
    """
    policies = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                policies.append(os.sched_getscheduler(int(thread.name)) & ~os.SCHED_RESET_ON_FORK)
    return sum(policy in {os.SCHED_FIFO, os.SCHED_RR, SCHED_DEADLINE} for policy in policies), len(policies)


def process_of(thread: int) -> int | None:
    """The process (thread group) of a thread: the Tgid line of proc_pid_status(5); None if it has ended."""
    try:
        for line in kernel_lines(Path(f"/proc/{thread}/status")):
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return None
