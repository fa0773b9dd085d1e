"""Nice of threads, put back from a journal."""

from __future__ import annotations

import os
from pathlib import Path

from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.processes import process_of, start_ticks

from .journal import FoundSlice


def restore_threads(found: FoundSlice, dry_run: bool = False) -> str:
    """Give each thread of a slice the nice it had, wherever it is now; returns what was done, for people.

    A thread that the journal does not know was started since the last look: if it has the level of one that was
    reniced, it has inherited it, and gets what its process had.

    Raises:
        ActuatorError: a thread cannot be reniced; one that has ended is not an error.
    """
    originals = {one.thread: one.nice for one in found.threads if start_ticks(one.thread) == one.start_ticks}
    processes = {one.process: one.nice for one in reversed(found.threads)}
    processes |= {one.thread: one.nice for one in found.threads if one.thread == one.process}
    ours = {level for thread in originals if (level := _level(thread)) not in {None, originals[thread]}}
    for thread in _members(Path(found.cgroup)) if found.cgroup is not None else ():
        if thread not in originals and _level(thread) in ours:
            process = process_of(thread)
            if process in processes:
                originals[thread] = processes[process]
    changed = [thread for thread, nice in originals.items() if _renice(thread, nice, dry_run)]
    return f"nice of {len(changed)} threads" if changed else ""


def _members(group: Path) -> list[int]:
    try:
        return [int(thread) for thread in CpuGroup.at(group).threads_file.read_text().split()]
    except (ActuatorError, OSError):  # the group has gone; its threads may be elsewhere
        return []


def _level(thread: int) -> int | None:
    try:
        return os.getpriority(os.PRIO_PROCESS, thread)
    except ProcessLookupError:
        return None


def _renice(thread: int, nice: int, dry_run: bool) -> bool:
    """Whether a thread has another nice, which is then changed."""
    if _level(thread) in {None, nice}:
        return False
    try:
        if not dry_run:
            os.setpriority(os.PRIO_PROCESS, thread, nice)
    except ProcessLookupError:
        return False
    except OSError as error:
        raise ActuatorError.of(f"thread {thread}: nice {nice}", error) from error
    return True
