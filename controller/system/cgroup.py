"""Which cgroup hierarchy controls CPU time here, and what the files of one group are called."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .cgroup_mounts import MOUNTS, CgroupVersion, cgroup_mounts
from .kernel_file import ActuatorError


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
        """The hierarchy of this machine: a controller lives in exactly one, so the first that has it is the one.

        Raises:
            ActuatorError: no hierarchy has the cpu controller.
        """
        for cgroup_mount in cgroup_mounts(mounts):
            if "cpu" in (
                cgroup_mount.options if cgroup_mount.version == 1 else _words(cgroup_mount.root / "cgroup.controllers")
            ):
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
        """The group at a path, told apart by its files.

        Raises:
            ActuatorError: no such group, or one without the cpu controller.
        """
        if (path / "cpu.cfs_quota_us").exists():
            return cls(1, path)
        if (path / "cpu.max").exists():
            return cls(2, path)
        if not path.is_dir():
            raise ActuatorError(f"{path}: no such cgroup")
        if (path / "cgroup.controllers").exists():
            raise ActuatorError(f"{path}: no cpu.max; enable it: echo +cpu > {path.parent / 'cgroup.subtree_control'}")
        raise ActuatorError(f"{path}: neither cpu.cfs_quota_us nor cpu.max; expected a cgroup of the cpu controller")

    @property
    def threads_file(self) -> Path:
        """Lists the ids of all threads in the group, one a line."""
        return self.path / ("tasks" if self.version == 1 else "cgroup.threads")


def _words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []
