"""What a group's weight is weighed against: what else in the group above may use its CPUs.

A weight has the CPU scheduler share the CPUs of a group among what is directly in it, groups and threads alike
(Documentation/scheduler/sched-design-CFS.rst). A group that is alone there gets the same with any weight.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path

MOST_LOOKED_AT = 256
"""Processes of the groups beside; of more than so many the first count."""


def rivals_of(group: Path, cpus: Collection[int]) -> str:
    """Which groups and processes beside a group may use some of its CPUs; empty for none.

    Args:
        group: its path, or a link to it.
        cpus: numbers of the CPUs that its processes may use.
    """
    own = group.resolve()
    groups = [item for item in own.parent.iterdir() if item.is_dir() and item != own and _share(_below(item), cpus)]
    threads = sum(_may_use(pid, cpus) for pid in islice(_processes(own.parent), MOST_LOOKED_AT))
    parts = [f"{len(groups)} group{'s' * (len(groups) > 1)}"] if groups else []
    parts += [f"{threads} process{'es' * (threads > 1)}"] if threads else []
    return " and ".join(parts)


def _share(processes: Iterator[int], cpus: Collection[int]) -> bool:
    return any(_may_use(pid, cpus) for pid in islice(processes, MOST_LOOKED_AT))


def _below(group: Path) -> Iterator[int]:
    yield from _processes(group)
    with contextlib.suppress(OSError):  # it has gone
        for item in group.iterdir():
            if item.is_dir():
                yield from _below(item)


def _processes(group: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):  # it has gone, or has threads alone (cgroup v2)
        yield from map(int, (group / "cgroup.procs").read_text().split())


def _may_use(pid: int, cpus: Collection[int]) -> bool:
    with contextlib.suppress(OSError):
        return not os.sched_getaffinity(pid).isdisjoint(cpus)
    return False
