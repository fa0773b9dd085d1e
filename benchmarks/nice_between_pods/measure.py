"""What nice does between pods, inside a pod, and between sessions, on this kernel: CPU time that processes get.

Five CPU-bound processes represent the UPFs of Andrade and Wickboldt (JNSM 33(4):90, 2025). Each is in a cpu cgroup of
its own, as in a pod, unless an arm says otherwise. Phases alternate: no process has a nice level, or the first has -5
and the others 5, as in the study's settings 9 to 16 and 23 to 26. The figure is the share of the first in the CPU time
of all five, with nice over without, with its 95% interval over pairs of phases. Where nice acts the ratio is far above
1; the arms inside a pod and in a single group show that the measurement would detect it.

Run as root: ``python -m benchmarks.nice_between_pods.measure``. Prints a table and JSON. Groups and processes are its
own and are removed at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.busy import busy

from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.data.intervals import mean_interval
from slicepilot.testbed.lifecycle.cgroups import write

COUNT = 5
NICE = (-5, *[5] * (COUNT - 1))
PERIOD_US = 100_000
SETTLE_S = 0.15


@dataclass(frozen=True)
class Arm:
    """Five processes in their groups.

    Attributes:
        name: for people.
        groups: group of each process; None: none of its own, a session in the root group.
        requests: CPU requests of the groups in mCPU; a request of n gives n x 1.024 shares, none gives 2.
        limits: CPU limits of the groups in mCPU; none is 0.
        one_cpu: all on a single CPU, so that nothing depends on where threads are put.
        expected: whether nice acts here by the kernel's documentation (sched(7)).
    """

    name: str
    groups: tuple[int | None, ...]
    requests: tuple[int, ...] = (0,) * COUNT
    limits: tuple[int, ...] = (0,) * COUNT
    one_cpu: bool = False
    expected: bool = False


OWN = tuple(range(COUNT))
LIMITS = (1000, *[500] * (COUNT - 1))
ARMS = (
    Arm("pods without requests, one CPU (settings 9 and 10)", OWN, one_cpu=True),
    Arm("pods without requests, all CPUs (settings 9 and 10)", OWN),
    Arm("limits of 1000 and 500 mCPU, which are requests too (setting 15)", OWN, LIMITS, LIMITS),
    Arm("requests of 1000 and 500 mCPU without limits", OWN, LIMITS),
    Arm("sessions in the root group (autogroups, if the kernel has them on)", (None,) * COUNT),
    Arm("two processes of a pod, beside three pods", (0, 0, 1, 2, 3), expected=True),
    Arm("all in a single group, one CPU", (0,) * COUNT, one_cpu=True, expected=True),
)


class Site:
    """An arm that runs as long as the context does."""

    def __init__(self, arm: Arm) -> None:
        self.arm, self.hierarchy = arm, CpuHierarchy.find()

    def __enter__(self) -> Site:
        with contextlib.ExitStack() as undo:
            self._build(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _build(self, undo: contextlib.ExitStack) -> None:
        arm, root, version = self.arm, self.hierarchy.root, self.hierarchy.version
        parent = root / f"slicepilot-nice-{os.getpid()}"
        parent.mkdir()
        undo.callback(removed, parent)
        if version == 2:
            write(parent / "cgroup.subtree_control", "+cpu")
        # As heavy as possible, so that others who use this machine take little from it.
        write(parent / ("cpu.shares" if version == 1 else "cpu.weight"), 1 << 18 if version == 1 else 10_000)
        for number in sorted({group for group in arm.groups if group is not None}):
            folder = parent / str(number)
            folder.mkdir()
            undo.callback(removed, folder)
            self._set(folder, arm.requests[number], arm.limits[number])
        self.processes = undo.enter_context(busy(len(arm.groups), 600, sessions=True))
        cpus = {min(os.sched_getaffinity(0))} if arm.one_cpu else os.sched_getaffinity(0)
        for process, group in zip(self.processes, arm.groups, strict=True):
            os.sched_setaffinity(process.pid, cpus)
            home = root if group is None else parent / str(group)
            write(home / "cgroup.procs", process.pid)

    def _set(self, folder: Path, request_mcpu: int, limit_mcpu: int) -> None:
        shares = max(2, request_mcpu * 1024 // 1000)
        quota_us = limit_mcpu * PERIOD_US // 1000
        if self.hierarchy.version == 1:
            write(folder / "cpu.shares", shares)
            write(folder / "cpu.cfs_quota_us", quota_us or -1)
        else:
            write(folder / "cpu.weight", 1 + (shares - 2) * 9999 // 262142)
            write(folder / "cpu.max", f"{quota_us or 'max'} {PERIOD_US}")

    def share(self, levels: Sequence[int], seconds: float) -> float:
        """CPU time of the first process over that of all, at these nice levels."""
        for process, level in zip(self.processes, levels, strict=True):
            os.setpriority(os.PRIO_PROCESS, process.pid, level)
        time.sleep(SETTLE_S)
        before = self._used_ns()
        time.sleep(seconds)
        used = self._used_ns() - before
        return float(used[0] / used.sum())

    def _used_ns(self) -> np.ndarray:
        files = [Path(f"/proc/{process.pid}/schedstat") for process in self.processes]
        return np.asarray([int(file.read_text().split()[0]) for file in files], np.float64)


def removed(folder: Path) -> None:
    """Remove a group whose processes have just ended."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            folder.rmdir()
            break
        time.sleep(0.02)


def main() -> None:
    """Measure all arms and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.4, help="of a phase")
    options = parser.parse_args()
    results = []
    for arm in ARMS:
        ratios, plain = list[float](), list[float]()
        with Site(arm) as site:
            for number in range(options.pairs):
                order = (None, NICE) if number % 2 else (NICE, None)  # what drifts meets both alike
                shares = {levels: site.share(levels or [0] * COUNT, options.seconds) for levels in order}
                plain.append(shares[None])
                ratios.append(float(np.log(shares[NICE] / shares[None])))
        spread = mean_interval(ratios)
        ratio, low, high = (float(np.exp(value)) for value in (spread.value, spread.low, spread.high))
        print(f"{arm.name:72s} share {np.mean(plain):.2f}  ratio {ratio:.2f} ({low:.2f} to {high:.2f})", flush=True)
        result = {"arm": arm.name, "share": float(np.mean(plain)), "ratio": ratio, "low": low, "high": high}
        results.append(result | {"acts_by_documentation": arm.expected})
    print(json.dumps({"kernel": os.uname().release, "pairs": options.pairs, "arms": results}))


if __name__ == "__main__":
    main()
