"""Splits the CPU time of a UPF process among the slices that share it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.env.telemetry import Telemetry

from .layout import AT_N6, AT_TUN


class SharedGroups:
    """Splits what was measured of a cgroup among its slices.

    Args:
        groups: the CPU cgroup of each slice; those of slices that share a UPF are the same.
        packets: counters of the packet programs, `layout.SLICE`, which change while they are read.

    Attributes:
        groups: the same with each group once, at the first of its slices: what `SchedProbe` measures.
        any: whether there is anything to split.
    """

    def __init__(self, groups: Sequence[Path | None], packets: npt.NDArray[Any]) -> None:
        users: dict[Path, list[int]] = {}
        for index, group in enumerate(groups):
            if group is not None:
                users.setdefault(group, []).append(index)
        members = [indices for indices in users.values() if len(indices) > 1]
        self._members = [np.asarray(indices) for indices in members]
        others = {index for indices in members for index in indices[1:]}
        self.groups = [None if index in others else group for index, group in enumerate(groups)]
        self.any = bool(members)
        self._packets = packets
        # Packets until the last window ended and until the last `totals`; CPU time then, and each slice's part of it.
        self._window, self._until, self._cpu_ns, self._charged = np.zeros((4, len(groups)))

    def split(self, telemetry: Telemetry) -> None:
        """Split CPU use by packets since the last call, counting arrivals and departures; equally if there were none.

        The wait for a CPU is the same for all.
        """
        now = self._count()
        passed, self._window = now - self._window, now
        telemetry.cpu_use_mcpu[:, 0] = self._parts(telemetry.cpu_use_mcpu[:, 0], passed)
        for indices in self._members:
            telemetry.runqueue_delay_us[indices, 0] = telemetry.runqueue_delay_us[indices[0], 0]

    def totals(self, cpu_ns: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """CPU time since the start by slice, from that of groups, which is at the index of each group's first slice.

        Time between two calls is charged by the packets between them.
        """
        used, now = cpu_ns.astype(np.float64), self._count()
        self._charged = self._charged + self._parts(used - self._cpu_ns, now - self._until)
        self._cpu_ns, self._until = used, now
        return self._charged.copy()

    def _parts(self, used: npt.NDArray[Any], passed: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        result = used.astype(np.float64)
        for indices in self._members:
            total = passed[indices].sum()
            result[indices] = result[indices[0]] * (passed[indices] / total if total else 1.0 / len(indices))
        return result

    def _count(self) -> npt.NDArray[np.float64]:
        slices = self._packets[: len(self.groups)]
        left = slices["exit"]["packets"]
        return np.asarray(slices["n3"]["packets"] + left[:, AT_TUN] + left[:, AT_N6], np.float64)
