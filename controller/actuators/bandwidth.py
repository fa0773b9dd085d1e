"""The files of a group that hold its CFS quota and period, as they are, on cgroup v1 and v2.

Without NumPy: what restores after a crash uses them, too.
"""

from __future__ import annotations

import contextlib
import errno
import math
import time
from typing import Protocol

from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.kernel_file import ActuatorError, KernelFile

NO_QUOTA = -1
Bandwidth = tuple[int, int]
"""Quota and period, in microseconds."""
LEAST_US = 1000  # min_cfs_quota_period
LET_GO_S, AGAIN_S = 0.5, 0.001


class BandwidthFiles(Protocol):
    """Quota and period in microseconds; a quota of -1 is none. All raise ActuatorError."""

    def read(self) -> tuple[int, int]:
        """What the kernel has."""
        ...

    def write_quota(self, quota_us: int, period_us: int) -> None:
        """Set the quota under the period that holds."""

    def write(self, quota_us: int, period_us: int) -> None:
        """Set both."""

    def close(self) -> None:
        """Release the files."""


def limit_mcpu(group: CpuGroup) -> float:
    """The CPU limit of a group as it is, inf for none; opens its files for reading only, and raises ActuatorError."""
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if group.version == 1 else ("cpu.max",)
    words: list[bytes] = []
    for name in names:
        with contextlib.closing(KernelFile(group.path / name, writable=False)) as file:
            words += file.read().split()
    quota, period = words
    return math.inf if quota in {b"max", b"-1"} else 1e3 * int(quota) / int(period)


def in_words(quota_us: int, period_us: int) -> str:
    """A bandwidth for messages."""
    return f"{'no quota' if quota_us < 0 else f'quota {quota_us} us'} in {period_us} us"


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
    quota_us, period_us = above.read()
    if quota_us == NO_QUOTA:  # it is not the pod that has less
        files.write(*wanted)
        return wanted
    most = max(LEAST_US, quota_us * wanted[1] // period_us), wanted[1]
    files.write(*most)
    return most


def put_back_pod_limit(files: BandwidthFiles, wanted: Bandwidth, until_s: float) -> bool:
    """Put a pod's limit back, after those of its containers.

    With version 1 the quota of a group that was removed binds the group above until the kernel has let go of it, which
    takes it some 15 ms (kernel/sched/core.c, ``cpu_cgroup_css_released``).

    Args:
        until_s: how long it is tried, by the monotonic clock.

    Returns:
        False where it stays as it is: somebody has given a container more meanwhile.

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


def bandwidth_files(group: CpuGroup) -> BandwidthFiles:
    """The files of a group; raises ActuatorError."""
    return _V1Files(group) if group.version == 1 else _V2File(group)


class _V1Files:
    """``cpu.cfs_quota_us`` (-1 is none) and ``cpu.cfs_period_us``."""

    def __init__(self, group: CpuGroup) -> None:
        self._quota = KernelFile(group.path / "cpu.cfs_quota_us")
        self._period = KernelFile(group.path / "cpu.cfs_period_us")

    def read(self) -> tuple[int, int]:
        return int(self._quota.read()), int(self._period.read())

    def write_quota(self, quota_us: int, period_us: int) -> None:
        del period_us  # has a file of its own
        self._quota.write(b"%d" % quota_us)

    def write(self, quota_us: int, period_us: int) -> None:
        before_us, before_period_us = self.read()
        # Without a quota in between no combination of old and new value can be refused, except what does not fit
        # the groups above and below.
        self._quota.write(b"-1")
        try:
            self._period.write(b"%d" % period_us)
            self._quota.write(b"%d" % quota_us)
        except ActuatorError:
            self._period.write(b"%d" % before_period_us)
            self._quota.write(b"%d" % before_us)
            raise

    def close(self) -> None:
        self._quota.close()
        self._period.close()


class _V2File:
    """``cpu.max``: quota (or ``max``) and period."""

    def __init__(self, group: CpuGroup) -> None:
        self._max = KernelFile(group.path / "cpu.max")

    def read(self) -> tuple[int, int]:
        quota, period = self._max.read().split()
        return (NO_QUOTA if quota == b"max" else int(quota)), int(period)

    def write_quota(self, quota_us: int, period_us: int) -> None:
        self._max.write(b"%d %d" % (quota_us, period_us) if quota_us >= 0 else b"max %d" % period_us)

    write = write_quota

    def close(self) -> None:
        self._max.close()
