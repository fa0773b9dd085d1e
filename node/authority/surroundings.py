"""What binds a UPF's CPU time beside our knobs: limits of groups above its own, CPUs it may not use, other writers."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from slicepilot.controller.actuators.bandwidth import limit_above
from slicepilot.controller.system.cgroup_paths import managers

WRITES = {
    "the kubelet": "at each resize of the pod, and where it reconciles its cgroups",
    "Docker": "at `docker update`",
    "Podman": "at `podman update`",
    "systemd": "CPUQuota= and CPUWeight=, again at `systemctl daemon-reload` and `set-property`",
}


@dataclass(frozen=True)
class Surroundings:
    """Limits on a UPF's CPU time beside those of its own group.

    Attributes:
        limit_mcpu: the least CPU limit of the groups above its own; inf: none.
        limited_by: the group with that limit; None without a limit.
        allowed: CPUs that its process may use (its cpuset and affinity) and that are online.
        writers: which other programs write the group's files, and when.
    """

    limit_mcpu: float
    limited_by: Path | None
    allowed: frozenset[int]
    writers: tuple[str, ...]

    @property
    def cpus(self) -> int:
        """How many CPUs its process may use."""
        return len(self.allowed)

    @property
    def usable(self) -> float:
        """CPUs that it can use at most."""
        return min(float(self.cpus), 1e-3 * self.limit_mcpu)


def surroundings(pid: int, group: Path | None, moves_pod: bool = False) -> Surroundings:
    """Look at a process and its CPU cgroup.

    Args:
        pid: of the process.
        group: its own.
        moves_pod: the group above it is its pod's, and follows: it binds nothing.

    Raises:
        ProcessLookupError: it has ended.
    """
    least, limited_by = (math.inf, None) if group is None else limit_above(group, skip=1 if moves_pod else 0)
    return Surroundings(
        limit_mcpu=least,
        limited_by=limited_by,
        allowed=frozenset(os.sched_getaffinity(pid)),
        writers=() if group is None else tuple(f"{name} ({WRITES[name]})" for name in managers(group)),
    )
