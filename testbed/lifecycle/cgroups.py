"""CPU cgroups of the slices: made, listed and removed; version 1 and 2 of the interface."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from slicepilot.configs import ConfigError
from slicepilot.controller.system.cgroup import CpuHierarchy

from .journal import TestbedJournal

PREFIX = "slicepilot-"
EDGE = "edge"
BEST_EFFORT_SHARES = 2
REMOVE_TIMEOUT_S = 2.0


def parent_of(name: str, controller: CpuHierarchy) -> Path:
    """The cgroup that holds a testbed's slices."""
    return controller.root / f"{PREFIX}{name}"


def make(name: str, children: tuple[str, ...], controller: CpuHierarchy, journal: TestbedJournal) -> dict[str, Path]:
    """One cgroup per child under the testbed's own; paths by child.

    Raises:
        ConfigError: the testbed's cgroup exists already.
        OSError: the kernel refuses.
    """
    parent = parent_of(name, controller)
    if parent.exists():
        raise ConfigError(f"cgroup {str(parent)!r} exists and is not this testbed's; use another name")
    if controller.version == 2:
        _delegate(controller.root)
    _make_one(parent, journal)
    # As the kubelet does for all pods together: the node's CPUs count against everything else on the machine.
    request(parent, 1000.0 * len(os.sched_getaffinity(0)), controller.version)
    if controller.version == 2:
        _delegate(parent)
    paths = {child: parent / child for child in children}
    for path in paths.values():
        _make_one(path, journal)
    return paths


def _delegate(group: Path) -> None:
    """Let a version 2 group hand the cpu controller to its children (Documentation/admin-guide/cgroup-v2.rst)."""
    control = group / "cgroup.subtree_control"
    if "cpu" not in control.read_text().split():
        descriptor = os.open(control, os.O_WRONLY)
        try:
            os.write(descriptor, b"+cpu")
        finally:
            os.close(descriptor)


def _make_one(path: Path, journal: TestbedJournal) -> None:
    journal.record("cgroup", path=str(path))
    path.mkdir()


def request(path: Path, request_mcpu: float, version: int) -> None:
    """Give a group the weight that Kubernetes gives a pod with this CPU request; raises OSError.

    Version 1: 1024 shares a CPU, at least 2 (kubelet, ``MilliCPUToShares``). Version 2: the range of shares mapped on
    that of weights (Kubernetes enhancement proposal 2254).
    """
    shares = max(BEST_EFFORT_SHARES, round(request_mcpu * 1.024))
    if version == 1:
        write(path / "cpu.shares", shares)
    else:
        write(path / "cpu.weight", 1 + (shares - 2) * 9999 // 262142)


def write(path: Path, value: object) -> None:
    """Raises OSError. Through a descriptor: a buffered file would lose the kernel's error when it is flushed."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a cgroup we made; whatever still runs in it was started there, and is killed first.

    Raises:
        OSError: it cannot be emptied.
    """
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    while path.exists():
        for pid in (path / "cgroup.procs").read_text().split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            path.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
