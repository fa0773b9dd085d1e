"""CPU burst of one slice: quota that it did not use and may use later (Documentation/scheduler/sched-bwc.rst).

Without NumPy: what restores after a crash uses it, too.
"""

from __future__ import annotations

from ..system.cgroup import CpuGroup
from ..system.kernel_file import KernelFile


class CpuBurst:
    """``cpu.cfs_burst_us`` (cgroup v1) or ``cpu.max.burst`` (v2), in microseconds; since Linux 5.14.

    The kernel refuses a burst above the quota, and a quota below the burst: room is made before a quota sinks.

    Raises:
        ActuatorError: the group has no such file, or the kernel refuses a value.
    """

    def __init__(self, group: CpuGroup) -> None:
        self._file = KernelFile(group.path / name_of(group))
        self._original = self._burst_us = self.read()

    def read(self) -> int:
        """What the kernel has."""
        return int(self._file.read())

    def set(self, burst_us: int) -> int:
        """Set it where it differs; returns it."""
        if burst_us != self._burst_us:
            self._file.write(b"%d" % burst_us)
            self._burst_us = burst_us
        return burst_us

    def make_room(self, quota_us: int) -> None:
        """Lower it to a quota that is about to be written; a quota of -1 is none."""
        if 0 <= quota_us < self._burst_us:
            self.set(quota_us)

    def restore(self) -> None:
        """As found, under the quota that was found with it."""
        self._burst_us = self.read()
        self.set(self._original)

    def close(self) -> None:
        """Release the file."""
        self._file.close()


def name_of(group: CpuGroup) -> str:
    """The file's name."""
    return "cpu.cfs_burst_us" if group.version == 1 else "cpu.max.burst"


def burst_of(group: CpuGroup) -> CpuBurst | None:
    """A group's; None where the kernel has none."""
    return CpuBurst(group) if (group.path / name_of(group)).exists() else None
