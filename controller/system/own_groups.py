"""Groups of our own for processes that have none: made, filled, and at the end emptied into where the tasks came from.

Nothing is written outside the mounted hierarchy of the CPU controller, below groups that root alone can write to. What
a group or a thread needs to be put back is written down before anything is made or moved
(`slicepilot.controller.watchdog.journal`).
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from . import cgroup_paths
from .cgroup import CpuHierarchy
from .cgroup_paths import below
from .kernel_file import ActuatorError
from .processes import start_ticks

PREFIX = "slicepilot-own-"
PROCESSES = "cgroup.procs"
REMOVE_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class OwnGroup:
    """A group that we make.

    Attributes:
        slice: whose UPF it is for, the first slice where several have it.
        path: of the group.
        home: where its UPF was, and where everything in it goes at the end.
    """

    slice: str
    path: str
    home: str


@dataclass(frozen=True)
class MovedThread:
    """A kernel thread that works for a UPF, of NAPI for instance.

    Attributes:
        slice: as of `OwnGroup`.
        thread, start_ticks: identify it; numbers are used again.
        home: the group that it was in; group: where it is moved to, which may be a group that others have made.
    """

    slice: str
    thread: int
    start_ticks: int
    home: str
    group: str


def check_safe(folder: Path, root: Path | None = None) -> None:
    """Raises ActuatorError for a group that users other than root can write to, or that is no CPU group.

    ``root`` is the hierarchy's own folder, that of the machine's if none is given.
    """
    root = root or CpuHierarchy.find().root
    if ".." in folder.parts or not folder.is_relative_to(root):
        raise ActuatorError(f"{folder}: not in the hierarchy of the CPU controller; expected groups below {root}")
    device = root.stat().st_dev
    for item in (folder, *folder.parents):
        try:
            result = item.lstat()
        except OSError as error:
            raise ActuatorError.of(f"{item}: look at it", error) from error
        if result.st_dev != device or not stat.S_ISDIR(result.st_mode):
            raise ActuatorError(f"{item}: not a group of {root}; expected no links and no other file systems")
        if result.st_uid != 0 or result.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ActuatorError(
                f"{item}: user {result.st_uid} can write to it; expected groups that only root writes to"
            )
        if item == root:
            return


def make(group: Path) -> None:
    """Make a group below a group that `check_safe` accepts; raises ActuatorError, also where it is there already."""
    check_safe(group.parent)
    try:
        group.mkdir(mode=0o755)
    except OSError as error:
        raise ActuatorError.of(f"{group}: make the group", error) from error


def move(task: int, started: int, group: Path) -> None:
    """Put a process with all its threads, or a kernel thread, into a group.

    Raises:
        ActuatorError: the kernel refuses (EINVAL: a thread that may not leave the root group, a task of real time in a
            group without a share of it); or the task of that start time has ended, and `ActuatorError.vanished`.
    """
    gone = ActuatorError(f"process {task}: has ended", errno.ENOENT)
    try:
        descriptor = os.pidfd_open(task)
    except ProcessLookupError:
        raise gone from None
    except OSError as error:
        raise ActuatorError.of(f"process {task}: open it", error) from error
    try:
        if start_ticks(task) != started:
            raise gone
        _write(group, task)
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        if ended.poll(0):  # its number may have been another's when it was written
            raise gone
    except ProcessLookupError:
        raise gone from None
    except OSError as error:
        raise ActuatorError.of(f"{group}: move process {task} there", error) from error
    finally:
        os.close(descriptor)


def group_of(task: int) -> Path | None:
    """The CPU group of a task; the hierarchy's own folder for the root group, None for a task that has ended."""
    try:
        return cgroup_paths.of_process(task) or CpuHierarchy.find().root
    except FileNotFoundError:
        return None


def thread_back(moved: MovedThread, dry_run: bool = False) -> str:
    """Move a kernel thread back, unless it has ended or another program has moved it; returns a text for the report.

    Raises ActuatorError.
    """
    if start_ticks(moved.thread) != moved.start_ticks or group_of(moved.thread) != Path(moved.group):
        return ""
    home = _nearest(Path(moved.home))
    if not dry_run:
        try:
            move(moved.thread, moved.start_ticks, home)
        except ActuatorError as error:
            if error.vanished:  # it has just ended
                return ""
            raise
    return f"thread {moved.thread} back in {_described(home, moved.home)}"


def group_back(own: OwnGroup, dry_run: bool = False) -> str:
    """Move all that is in a group of ours, also what others have put there, to where its UPF was, and remove the group.

    What its processes have started since is in it as well. Where that group has gone it is the nearest group above
    that has not. Returns what was done, for people.

    Raises:
        FileNotFoundError: there is no such group any more.
        ActuatorError: it cannot be emptied.
    """
    path, home = Path(own.path), _nearest(Path(own.home))
    if not path.name.startswith(PREFIX):
        raise ActuatorError(f"{path}: not called as a group of ours; expected {PREFIX}NAME")
    path.stat()
    moved: set[int] = set()
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    while not dry_run:
        try:
            for folder in reversed([path, *(group for group, _ in below(path))]):
                moved |= _emptied(folder, home)
                folder.rmdir()
            break
        except FileNotFoundError:  # somebody else was faster
            break
        except OSError as error:  # a child that was started meanwhile, or that is ending
            if time.monotonic() > deadline:
                raise ActuatorError.of(f"{path}: empty and remove it", error) from error
            time.sleep(0.005)
    report = f"{len(moved)} processes back in {_described(home, own.home)}, " if moved else ""
    return f"{report}{path} removed"


def remove_if_empty(own: OwnGroup) -> bool:
    """Whether a group of ours is gone, removed just now or before."""
    try:
        Path(own.path).rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # something is in it
        return False
    return True


def _emptied(group: Path, home: Path) -> set[int]:
    """Processes of a group that were moved."""
    result = {int(word) for word in (group / PROCESSES).read_text().split()}
    for task in sorted(result):
        try:
            _write(home, task)
        except ProcessLookupError:  # it has ended
            result.discard(task)
    return result


def _write(group: Path, task: int) -> None:
    """Move a task by a single write, which moves a whole process; raises OSError."""
    descriptor = os.open(group / PROCESSES, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(descriptor, b"%d" % task)
    finally:
        os.close(descriptor)


def _nearest(home: Path) -> Path:
    """A group, or the nearest group above it that is there; raises ActuatorError."""
    for folder in (home, *home.parents):
        if (folder / PROCESSES).exists():
            return folder
    raise ActuatorError(f"{home}: neither this group nor a group above it is there", errno.ENOENT)


def _described(home: Path, wanted: str) -> str:
    return str(home) if str(home) == wanted else f"{home}, since {wanted} has gone"
