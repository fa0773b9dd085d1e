"""Where the hierarchies of cgroups are mounted (cgroups(7), proc_pid_mounts(5))."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from .kernel_file import kernel_lines

CgroupVersion = Literal[1, 2]

MOUNTS = Path("/proc/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class CgroupMount:
    """One hierarchy.

    Attributes:
        version: 1 (Documentation/admin-guide/cgroup-v1) or 2 (Documentation/admin-guide/cgroup-v2.rst).
        point: its mount point, as the kernel writes it.
        options: it is mounted with; of version 1 its controllers are among them, of version 2 none.
    """

    version: CgroupVersion
    point: str
    options: frozenset[str]

    @cached_property
    def root(self) -> Path:
        """Its own folder, the root group. The kernel writes blanks, for instance, as \\040."""
        return Path(_ESCAPED.sub(lambda code: chr(int(code[1], 8)), self.point))

    def is_named(self, controllers: str) -> bool:
        """Whether a line of /proc/PID/cgroup with these controllers is about this hierarchy: version 2 names none."""
        wanted = set(filter(None, controllers.split(",")))
        return self.version == 2 if not wanted else self.version == 1 and wanted <= self.options


def cgroup_mounts(mounts: Path = MOUNTS) -> list[CgroupMount]:
    """Those of this machine, as they were mounted one after the other."""
    result = []
    for line in kernel_lines(mounts):
        _, point, kind, options, *_ = line.split(" ", 4)
        if kind in {"cgroup", "cgroup2"}:  # a node has thousands of others, and a loop looks here
            old = kind == "cgroup"
            result.append(CgroupMount(1 if old else 2, point, frozenset(options.split(",") if old else ())))
    return result
