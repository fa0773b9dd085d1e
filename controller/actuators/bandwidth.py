"""The files of a group that hold its CFS quota, period and burst, as they are, on cgroup v1 and v2.

The kernel refuses a quota below the burst (kernel/sched/core.c, ``tg_set_cfs_bandwidth``), which was reported of
neighbouring systems (koordinator#2778): a burst goes down before the quota does, and up again after it.

Without NumPy: what restores after a crash uses them, too.
"""

from __future__ import annotations

import contextlib
import errno
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.kernel_file import ActuatorError, KernelFile

NO_QUOTA = -1
LEAST_US = 1000  # min_cfs_quota_period
LET_GO_S, AGAIN_S = 0.5, 0.001


class Bandwidth(NamedTuple):
    """Quota (-1 is none), period and burst, in microseconds; the burst is 0 where the kernel has none."""

    quota_us: int
    period_us: int
    burst_us: int = 0

    @property
    def fitting(self) -> Bandwidth:
        """The same with the burst lowered to the quota, the most that the kernel accepts."""
        return self if self.quota_us < 0 else self._replace(burst_us=min(self.burst_us, self.quota_us))


def limit_mcpu(group: CpuGroup) -> float:
    """The CPU limit of a group as it is, inf for none; opens its files for reading only, and raises ActuatorError."""
    quota_us, period_us = quota_of(group)
    return math.inf if quota_us < 0 else 1e3 * quota_us / period_us


def quota_of(group: CpuGroup) -> tuple[int, int]:
    """Quota (-1: none) and period of a group as they are, in microseconds; otherwise as `limit_mcpu`."""
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if group.version == 1 else ("cpu.max",)
    words: list[bytes] = []
    for name in names:
        with contextlib.closing(KernelFile(group.path / name, writable=False)) as file:
            words += file.read().split()
    quota, period = words
    return (NO_QUOTA if quota == b"max" else int(quota)), int(period)


def limit_above(group: Path, skip: int = 0) -> tuple[float, Path | None]:
    """The least CPU limit of the groups above a group, in mCPU, and whose it is; inf and None without any.

    Args:
        group: its path, without links; skip: so many groups above it do not count.
    """
    least, whose = math.inf, None
    for parent in group.parents[skip:]:
        if not any((parent / name).exists() for name in ("cpu.max", "cpu.cfs_quota_us")):
            break  # the root has no limit
        if (limit := limit_mcpu(CpuGroup.at(parent))) < least:
            least, whose = limit, parent
    return least, whose


def in_words(quota_us: int, period_us: int, burst_us: int = 0) -> str:
    """A bandwidth for messages."""
    burst = f", burst {burst_us} us" if burst_us else ""
    return f"{'no quota' if quota_us < 0 else f'quota {quota_us} us'} in {period_us} us{burst}"


def put_back_limit(
    files: BandwidthFiles, wanted: Bandwidth, above: BandwidthFiles, wanted_above: Bandwidth
) -> Bandwidth:
    """Put a container's limit back, even if its pod was narrowed meanwhile: the kernel refuses it more than the pod has
    (version 1). Then the pod's is put back first, and if that does not help it gets what the pod has.

    Returns:
        What was written.

    Raises:
        ActuatorError: the kernel refuses it for another reason.
    """
    if _try(files, wanted) or (_try(above, wanted_above) and _try(files, wanted)):
        return wanted
    quota_us, period_us, _ = above.read()
    if quota_us == NO_QUOTA:  # it is not the pod that has less
        files.write(*wanted)
        return wanted
    most = wanted._replace(quota_us=max(LEAST_US, quota_us * wanted.period_us // period_us)).fitting
    files.write(*most)
    return most


def put_back_pod_limit(files: BandwidthFiles, wanted: Bandwidth, until_s: float) -> bool:
    """Put a pod's limit back, after those of its containers.

    With version 1 the quota of a group that was removed binds the group above until the kernel has let go of it, which
    takes it some 15 ms (kernel/sched/core.c, ``cpu_cgroup_css_released``).

    Args:
        until_s: how long it is tried, by the monotonic clock.

    Returns:
        False if it stays, since another program has given a container a higher limit meanwhile.

    Raises:
        ActuatorError: the kernel refuses it for another reason.
    """
    while not (done := _try(files, wanted)) and time.monotonic() < until_s:
        time.sleep(AGAIN_S)
    return done


def _try(files: BandwidthFiles, wanted: Bandwidth) -> bool:
    """Whether it could be written, or was refused for what the groups above and below have."""
    try:
        files.write(*wanted)
    except ActuatorError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


class _Burst:
    """``cpu.cfs_burst_us`` or ``cpu.max.burst``; kernels before 5.14 have neither."""

    def __init__(self, path: Path) -> None:
        self._file = KernelFile(path) if path.exists() else None

    def read(self) -> int:
        return 0 if self._file is None else int(self._file.read())

    def write(self, burst_us: int) -> None:
        if self._file is not None:
            self._file.write(b"%d" % burst_us)

    @contextlib.contextmanager
    def beside(self, burst_us: int) -> Iterator[None]:
        """Write a quota inside that allows so much: a larger burst goes down first, a smaller burst up afterwards."""
        before_us = self.read()
        if burst_us < before_us:
            self.write(burst_us)
        try:
            yield
        except ActuatorError:
            if burst_us < before_us:
                self.write(before_us)
            raise
        # Kernels before 6.10 damage it at each write of cpu.max (cpu_max_write gave nanoseconds what are microseconds).
        if burst_us and self.read() != burst_us:
            self.write(burst_us)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _V1Files:
    """``cpu.cfs_quota_us`` (-1 is none), ``cpu.cfs_period_us`` and ``cpu.cfs_burst_us``."""

    def __init__(self, group: CpuGroup) -> None:
        self._quota = KernelFile(group.path / "cpu.cfs_quota_us")
        self._period = KernelFile(group.path / "cpu.cfs_period_us")
        self._burst = _Burst(group.path / "cpu.cfs_burst_us")

    def read(self) -> Bandwidth:
        return Bandwidth(int(self._quota.read()), int(self._period.read()), self._burst.read())

    def write_quota(self, quota_us: int, period_us: int, burst_us: int = 0) -> None:
        with self._burst.beside(Bandwidth(quota_us, period_us, burst_us).fitting.burst_us):
            self._quota.write(b"%d" % quota_us)  # the period has a file of its own

    def write(self, quota_us: int, period_us: int, burst_us: int = 0) -> None:
        before_us, before_period_us, before_burst_us = self.read()
        # Without a quota in between no combination of old and new value can be refused, except what does not fit
        # the groups above and below.
        self._quota.write(b"-1")
        try:
            self._period.write(b"%d" % period_us)
            self.write_quota(quota_us, period_us, burst_us)
        except ActuatorError:
            self._period.write(b"%d" % before_period_us)
            self.write_quota(before_us, before_period_us, before_burst_us)
            raise

    def close(self) -> None:
        for file in (self._quota, self._period, self._burst):
            file.close()


class _V2File:
    """``cpu.max``: quota (or ``max``) and period; ``cpu.max.burst``."""

    def __init__(self, group: CpuGroup) -> None:
        self._max = KernelFile(group.path / "cpu.max")
        self._burst = _Burst(group.path / "cpu.max.burst")

    def read(self) -> Bandwidth:
        quota, period = self._max.read().split()
        return Bandwidth(NO_QUOTA if quota == b"max" else int(quota), int(period), self._burst.read())

    def write_quota(self, quota_us: int, period_us: int, burst_us: int = 0) -> None:
        with self._burst.beside(Bandwidth(quota_us, period_us, burst_us).fitting.burst_us):
            self._max.write(b"%d %d" % (quota_us, period_us) if quota_us >= 0 else b"max %d" % period_us)

    write = write_quota

    def close(self) -> None:
        self._max.close()
        self._burst.close()


BandwidthFiles = _V1Files | _V2File
"""CPU bandwidth of one group. All methods raise ActuatorError; a value that the kernel refuses changes nothing.

``write_quota`` sets quota and burst under the period that holds, ``write`` all three. A burst that does not fit beside
a quota is lowered to the quota (`Bandwidth.fitting`).
"""


def bandwidth_files(group: CpuGroup) -> BandwidthFiles:
    """The files of a group; raises ActuatorError."""
    return _V1Files(group) if group.version == 1 else _V2File(group)
