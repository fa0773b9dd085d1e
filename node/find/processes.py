"""A snapshot of the processes of this machine (proc(5))."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slicepilot.configs.text import printable
from slicepilot.controller.system.cgroup_paths import GroupFolders, groups_of
from slicepilot.controller.system.kernel_file import kernel_lines
from slicepilot.controller.system.net import namespaces
from slicepilot.controller.system.processes import start_ticks

COMM_CHARACTERS = 15
"""Characters of a process's name that the kernel keeps (TASK_COMM_LEN)."""
MOST_ARGUMENT_BYTES = 1 << 16  # of a command line: a process may say that it is all of its memory (PR_SET_MM, prctl(2))
RESTS_AFTER = 50  # processes: some milliseconds


@dataclass(frozen=True)
class Process:
    """One process.

    Attributes:
        pid, parent: numbers; start_ticks distinguishes it from a later process of the same number.
        name: as the kernel has it, at most 15 characters, chosen by the process itself.
        user: number of the user it runs as.
        program: file name of the running program; of a kernel thread, and where that cannot be read, empty.
        arguments: its command line.
        groups: (controllers, path) in every cgroup hierarchy, as /proc/PID/cgroup has them; version 2 names none.
        netns: identity of its network namespace; None where it may not be looked at.
        group_names: of all groups that it is in, from the roots down, which root has given: units, slices, containers.
    """

    pid: int
    parent: int
    start_ticks: int
    name: str
    user: int
    program: str
    arguments: tuple[str, ...]
    groups: tuple[tuple[str, str], ...]
    netns: tuple[int, int] | None
    group_names: frozenset[str] = frozenset()

    @property
    def cpu_group(self) -> str:
        """Path in the hierarchy of the CPU controller; "/" is the root group, which everything is in."""
        paths = {key: path for controllers, path in self.groups for key in controllers.split(",")}
        return paths.get("cpu", paths.get("", "/"))

    def __str__(self) -> str:
        return f"{printable(self.program or self.name)} ({self.pid})"


def snapshot(rest_s: float = 0.0) -> dict[int, Process]:
    """All user processes by pid; some milliseconds of CPU time for a hundred of them.

    Args:
        rest_s: for so long after every `RESTS_AFTER` of them, for a thread that runs ahead of others.
    """
    folders, result = GroupFolders(), {}
    for count, entry in enumerate(Path("/proc").iterdir()):
        if entry.name.isdigit() and (item := look_at(int(entry.name), folders)) is not None:
            result[item.pid] = item
        if rest_s and count % RESTS_AFTER == RESTS_AFTER - 1:
            time.sleep(rest_s)
    return result


def look_at(pid: int, folders: GroupFolders | None = None) -> Process | None:
    """A process; None if it has ended or is a kernel thread.

    Args:
        pid: its number.
        folders: of cgroups, which all processes of a snapshot share.
    """
    folder = Path(f"/proc/{pid}")
    try:
        with (folder / "cmdline").open("rb", buffering=0) as file:
            arguments = file.read(MOST_ARGUMENT_BYTES)
        if not arguments:
            return None
        status = dict(line.split(":", 1) for line in kernel_lines(folder / "status", "replace") if ":" in line)
        groups = tuple(groups_of(pid, "replace"))
        started = start_ticks(pid)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    if started is None:
        return None
    program, netns = "", None
    with contextlib.suppress(OSError):
        program = (folder / "exe").readlink().name.removesuffix(" (deleted)")
        netns = namespaces.identity(folder / "ns/net")
    return Process(
        pid=pid,
        parent=int(status["PPid"]),
        start_ticks=started,
        name=status["Name"].strip(),
        user=int(status["Uid"].split()[1]),
        program=program,
        arguments=tuple(arguments.decode(errors="replace").rstrip("\0").split("\0")),
        groups=groups,
        netns=netns,
        group_names=(folders or GroupFolders()).names(groups),
    )


def companions(process: Process, everybody: Mapping[int, Process]) -> list[Process]:
    """Others in its CPU cgroup, oldest first: neither descendants nor ancestors, such as a container's init."""
    older = {process.pid, *ancestors(process, everybody)}
    family, others = {process.pid}, []
    for item in sorted(everybody.values(), key=lambda item: (item.start_ticks, item.pid)):
        if item.cpu_group != process.cpu_group or item.pid in older:
            continue
        if item.parent in family:
            family.add(item.pid)
        else:
            others.append(item)
    return others


def ancestors(process: Process, everybody: Mapping[int, Process]) -> Iterator[int]:
    """Pids of its parent, its parent's parent and so on, as far as they exist."""
    seen, parent = {process.pid}, process.parent
    while parent in everybody and parent not in seen:
        yield parent
        seen.add(parent)
        parent = everybody[parent].parent


def descendants(pid: int, everybody: Mapping[int, Process]) -> list[Process]:
    """A process's children, and theirs, as long as their parents live; by pid."""
    children = dict[int, list[Process]]()
    for item in everybody.values():
        children.setdefault(item.parent, []).append(item)
    result, waiting = dict[int, Process](), [pid]
    while waiting:
        fresh = [item for item in children.get(waiting.pop(), ()) if item.pid not in result and item.pid != pid]
        result |= {item.pid: item for item in fresh}
        waiting += [item.pid for item in fresh]
    return [result[number] for number in sorted(result)]


def eldest(processes: Iterable[Process], everybody: Mapping[int, Process]) -> list[Process]:
    """Processes that descend from none of the others, by pid: of a program and its workers, the program."""
    result = {item.pid: item for item in processes}
    return [
        result[pid] for pid in sorted(result) if not any(item in result for item in ancestors(result[pid], everybody))
    ]
