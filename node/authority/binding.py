"""Follows changes of limits of groups above a UPF's own, and of the CPUs that it may use, while a controller runs."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.env.arrays import FloatArray
from slicepilot.node.find.locate import Located

from .surroundings import Surroundings, surroundings


class Binding:
    """What each slice's UPF can use at most, now.

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
