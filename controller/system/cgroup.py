"""Where hierarchies of cgroups are mounted, which of them controls CPU time, and a group's files (cgroups(7))."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from .kernel_file import ActuatorError, kernel_lines

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
    """The cgroup mounts of this machine, in the order of mounting."""
    result = []
    for line in kernel_lines(mounts):
        _, point, kind, options, *_ = line.split(" ", 4)
        if kind in {"cgroup", "cgroup2"}:  # a node has thousands of others, and a loop looks here
            old = kind == "cgroup"
            result.append(CgroupMount(1 if old else 2, point, frozenset(options.split(",") if old else ())))
    return result


@dataclass(frozen=True)
class CpuHierarchy:
    """The mounted hierarchy that has the cpu controller.

    Attributes:
        version: 1 (Documentation/admin-guide/cgroup-v1) or 2 (Documentation/admin-guide/cgroup-v2.rst).
        root: its mount point.
    """

    version: CgroupVersion
    root: Path

    @classmethod
    def find(cls, mounts: Path = MOUNTS) -> CpuHierarchy:
        """The hierarchy of this machine: a controller lives in exactly one, so the first that has it is right.

        Raises:
            ActuatorError: no hierarchy has the cpu controller.
        """
        for cgroup_mount in cgroup_mounts(mounts):
            controllers = cgroup_mount.root / "cgroup.controllers"
            unified = controllers.read_text().split() if controllers.exists() else []
            if "cpu" in (cgroup_mount.options if cgroup_mount.version == 1 else unified):
                return cls(cgroup_mount.version, cgroup_mount.root)
        raise ActuatorError(
            "no cgroup hierarchy has the cpu controller; needed: cgroup v2 with cpu in cgroup.controllers, "
            "or cgroup v1 mounted with -o cpu"
        )


@dataclass(frozen=True)
class CpuGroup:
    """One cgroup that carries CPU knobs."""

    version: CgroupVersion
    path: Path

    @classmethod
    def at(cls, path: Path) -> CpuGroup:
        """The group at a path, recognised by its files.

        Raises:
            ActuatorError: no such group, or a group without the cpu controller.
        """
        if (path / "cpu.cfs_quota_us").exists():
            return cls(1, path)
        if (path / "cpu.max").exists():
            return cls(2, path)
        path = path.resolve()  # for errors: a link to a UPF's group is of no use to an operator
        if not path.is_dir():
            raise ActuatorError(f"{path}: no such cgroup")
        if any((path / name).exists() for name in ("cpu.shares", "cpu.weight")):
            raise ActuatorError(
                f"{path}: has a weight and no CPU limit: the kernel was built without CONFIG_CFS_BANDWIDTH; expected a "
                "kernel with it"
            )
        if (path / "cgroup.controllers").exists():
            raise ActuatorError(f"{path}: no cpu.max; enable it: echo +cpu > {path.parent / 'cgroup.subtree_control'}")
        raise ActuatorError(f"{path}: neither cpu.cfs_quota_us nor cpu.max; expected a cgroup of the cpu controller")

    @property
    def threads_file(self) -> Path:
        """Lists the ids of all threads in the group, one a line."""
        return self.path / ("tasks" if self.version == 1 else "cgroup.threads")
