"""What binds a UPF's CPU time beside our knobs: limits of groups above its own, CPUs it may not use, other writers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...controller.system.cgroup import CpuGroup
from ...controller.system.cgroup_paths import managers
from ...controller.system.kernel_file import ActuatorError

WRITES = {
    "the kubelet": "at each resize of the pod, and where it reconciles its cgroups",
    "Docker": "at `docker update`",
    "Podman": "at `podman update`",
    "systemd": "CPUQuota= and CPUWeight=, again at `systemctl daemon-reload` and `set-property`",
}


@dataclass(frozen=True)
class Surroundings:
    """Of one UPF.

    Attributes:
        limit_mcpu: the least CPU limit of the groups above its own, which binds it whatever its own is; inf: none.
        limited_by: which group that is; None without one.
        cpus: that its process may use (its cpuset and affinity).
        writers: who else writes the group's files, and when.
    """

    limit_mcpu: float
    limited_by: Path | None
    cpus: int
    writers: tuple[str, ...]

    @property
    def usable(self) -> float:
        """CPUs that it can use at most."""
        return min(float(self.cpus), 1e-3 * self.limit_mcpu)


def surroundings(pid: int, group: Path | None) -> Surroundings:
    """Look at a process and its CPU cgroup; raises ProcessLookupError for one that has ended."""
    limits = (
        {} if group is None else {parent: limit for parent in _above(group) if (limit := _limit(parent)) is not None}
    )
    limited_by = min(limits, key=lambda parent: limits[parent], default=None)
    return Surroundings(
        limit_mcpu=math.inf if limited_by is None else limits[limited_by],
        limited_by=limited_by,
        cpus=len(os.sched_getaffinity(pid)),
        writers=() if group is None else tuple(f"{name} ({WRITES[name]})" for name in managers(group)),
    )


def _above(group: Path) -> Iterator[Path]:
    """Groups above, without the root, which has no limit."""
    for parent in group.parents:
        if not (parent / "cgroup.procs").exists():
            return
        yield parent


def _limit(group: Path) -> float | None:
    """In mCPU; None for none."""
    try:
        if CpuGroup.at(group).version == 2:
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / name).read_text().strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    except (ActuatorError, OSError, ValueError):
        return None
    return None if quota in {"max", "-1"} else 1e3 * int(quota) / int(period)
