"""The scheduler's programs, and the memory they write."""

from __future__ import annotations

import itertools
import os
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.controller.system import cgroup_paths as cgroups
from slicepilot.controller.system.bpf.btf import unusable
from slicepilot.controller.system.bpf.errors import ProbeError
from slicepilot.controller.system.bpf.libbpf import BpfObject, RunStats, run_stats
from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.cores import most_cpus, online_cpus

from . import layout
from .layout import FOLDER, mapped
from .window import CpuWindow

MOST_GROUPS = 256
"""Limit on a slice's cgroups, which are visited between two ticks: its owner can make any number of them. A container
has one or two."""


class SchedProbe:
    """CPU time and run-queue delay of slices, and idle time of the CPUs that are online.

    A task that runs while it joins a group, or while this starts, counts from the next switch of its CPU.

    Args:
        groups: the CPU cgroup of each slice, in order; None where it has none. One that is still to be made is
            measured from the `refresh` on that finds it.
        names: of the slices, for messages.

    Attributes:
        slices: what was counted since the start, `layout.SCHED` by slice.
        usable: CPUs that the slices may use, whose idle time alone counts; None: all. Counts from the next `refresh`.
        window: what happened since it was ended last.

    Raises:
        ConfigError: groups of both versions.
        ProbeError: a group or something that is needed is missing.
    """

    def __init__(self, groups: Sequence[Path | None], names: Sequence[str]) -> None:
        self._groups, self._names = tuple(groups), tuple(names)
        if (why := unusable()) is not None:
            raise ProbeError(
                f"this kernel does not describe itself ({why}): it needs CONFIG_DEBUG_INFO_BTF; without it "
                "nothing is measured here, but UPFs can be listed (slicepilot node discover), and simulations run"
            )
        versions = {cgroups.unified(group) for group in groups if group and not cgroups.awaited(group)}
        if len(versions) > 1:
            raise ConfigError("cgroups = both versions; expected all of version 1, or all of version 2")
        if not versions and any(groups):
            versions = {CpuHierarchy.find().version == 2}
        start_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        self.usable: frozenset[int] | None = None
        self._object = BpfObject(
            FOLDER / "sched.bpf.o",
            {".rodata.sched": struct.pack("=Q2I", start_ns, len(groups), versions == {True})},
            {"slices": len(groups)},
        )
        try:
            self.slices = mapped(self._object, "slices", layout.SCHED)
            running = mapped(self._object, ".bss.running", layout.RUNNING, writable=True)
            running["since_ns_and_slice"] = len(groups) + 1  # something else, until we see what
            self.window = CpuWindow(self.slices, running[: min(most_cpus(), layout.MAX_CPUS)], start_ns)
            self._map = self._object.map("groups")
            self._known: set[int] = set()
            self._refreshing = threading.Lock()
            self._count_cpus()
            missing, _ = self._refresh()
            if missing:
                raise ProbeError(missing[0])
            self._object.attach_all()
        except BaseException:
            self._object.close()
            raise

    def __enter__(self) -> SchedProbe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def refresh(self) -> list[str]:
        """Tell the programs which groups there are now below the slices', and which CPUs count; returns what is
        missing, and which slices have too many. From any thread."""
        with self._refreshing:
            self._count_cpus()
            missing, crowded = self._refresh()
            return missing + crowded

    def _count_cpus(self) -> None:
        online = online_cpus()
        # Where the slices may use none that is online the kernel lets them run on others (cpusets(7), "Warnings").
        counted = (online & self.usable if self.usable is not None else online) or online
        self.window.counted = np.isin(np.arange(len(self.window.counted)), list(counted))

    def _refresh(self) -> tuple[list[str], list[str]]:
        wanted: dict[int, int] = {}
        missing, crowded = [], []
        for index, (name, group) in enumerate(zip(self._names, self._groups, strict=True)):
            if group is None or cgroups.awaited(group):
                continue
            try:
                result = list(itertools.islice(cgroups.ids(group), MOST_GROUPS + 1))
                if len(result) > MOST_GROUPS:
                    crowded.append(
                        f"{name}: {os.path.realpath(group)}: more than {MOST_GROUPS} groups: the CPU time of "
                        f"{MOST_GROUPS} is measured"
                    )
                wanted |= dict.fromkeys(result[:MOST_GROUPS], index)
            except ProbeError as error:
                missing.append(f"{name}: {error}")
        for gone in self._known - wanted.keys():
            self._map.delete(struct.pack("=Q", gone))
        for new in wanted.keys() - self._known:
            self._map.update(struct.pack("=Q", new), struct.pack("=I", wanted[new]))
        self._known = set(wanted)
        return missing, crowded

    def cost(self) -> dict[str, RunStats]:
        """Runs and run time by program, while `libbpf.count_run_time` is on."""
        return {program.name: run_stats(program.fd) for program in self._object.programs()}

    def close(self) -> None:
        self._object.close()
