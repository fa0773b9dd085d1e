"""What binds a UPF's CPU time beside our knobs: limits of groups above its own, CPUs it may not use, other writers."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slicepilot.controller.actuators.bandwidth import limit_above
from slicepilot.controller.system.cgroup_paths import managers
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.env.arrays import FloatArray
from slicepilot.node.find.locate import Located

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


class Binding:
    """What each slice's UPF can use at most, now, followed while a controller runs.

    Args:
        threads: CPUs that each slice's UPF can use at once by itself.
        around: what bound it at the start.
        moving: slices whose pod's limit follows their own.

    Attributes:
        cpus: numbers of the CPUs that the UPFs may use now, all together.
    """

    def __init__(
        self, threads: Mapping[str, float], around: Mapping[str, Surroundings], moving: Collection[str] = ()
    ) -> None:
        self._moving = moving
        self._threads, self._around = dict(threads), dict(around)
        self._start = {name: min(own, around[name].usable) for name, own in self._threads.items()}
        self._now = dict(self._start)
        self.cpus = cpus_of(around.values())
        self._cpus_at_start = len(self.cpus)

    def look(self, located: Mapping[str, Located], threads: FloatArray) -> list[str]:
        """Look again, some 50 us a slice; returns which limits are tighter than at the start, and why.

        Args:
            located: where the UPFs are; for a UPF that has gone the previous limits stay.
            threads: CPUs that each UPF can use, (S, 1), in the order of slices; filled in.
        """
        text = []
        for name, own in self._threads.items():
            item = located[name]
            with contextlib.suppress(ProcessLookupError, ActuatorError):
                self._around[name] = around = surroundings(item.process.pid, item.cgroup, name in self._moving)
                self._now[name] = now = min(own, around.usable)
                if now < self._start[name]:
                    text.append(f"{name}: can use {now:g} CPUs, {self._start[name]:g} at the start: {_why(around)}")
        threads[:, 0] = np.fromiter(self._now.values(), np.float32)
        self.cpus = cpus_of(self._around.values())
        if len(self.cpus) < self._cpus_at_start:
            text.append(f"CPUs that the slices may use: {len(self.cpus)}, {self._cpus_at_start} at the start")
        return text


def cpus_of(around: Iterable[Surroundings]) -> frozenset[int]:
    """Numbers of the CPUs that UPFs may use, all together."""
    return frozenset[int]().union(*(item.allowed for item in around))


def _why(around: Surroundings) -> str:
    if around.limited_by is not None and 1e-3 * around.limit_mcpu <= around.cpus:
        return f"{around.limited_by} limits it to {around.limit_mcpu:g} mCPU"
    return f"it may run on {around.cpus} of them only"
