"""Nice of group scope: the CPU weight of a slice's cgroup, which ranks whole slices against each other."""

from __future__ import annotations

from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.kernel_file import KernelFile
from slicepilot.data.nice_weights import LOWEST_NICE, NICE_0_WEIGHT, PRIO_TO_WEIGHT

V1_SHARES_RANGE = (2, 262_144)  # kernel/sched/sched.h: MIN_SHARES, MAX_SHARES
V2_WEIGHT_RANGE = (1, 10_000)  # Documentation/admin-guide/cgroup-v2.rst, cpu.weight
V2_DEFAULT_WEIGHT = 100


def weight_file(group: CpuGroup) -> KernelFile:
    """The file that holds a group's weight: ``cpu.shares`` or ``cpu.weight``; raises ActuatorError."""
    return KernelFile(group.path / ("cpu.shares" if group.version == 1 else "cpu.weight"))


class GroupWeight:
    """Multiplies the original weight of the group by the kernel's factor for a nice level.

    A pod starts with a weight that follows from its CPU request, so nice 0 is that weight and the promises that come
    with it, on cgroup v1 (``cpu.shares``) as on v2 (``cpu.weight``). On v2 a group of the default weight goes through
    ``cpu.weight.nice``, which has the table's full resolution where ``cpu.weight`` rounds nice 19 from 1.46 to 1.

    Raises:
        ActuatorError: the group has no weight, or the kernel refuses a value.
    """

    def __init__(self, group: CpuGroup) -> None:
        self._version = group.version
        self._range = V1_SHARES_RANGE if group.version == 1 else V2_WEIGHT_RANGE
        self._weight = weight_file(group)
        self._original = self._base = int(self._weight.read())
        nice_file = group.path / "cpu.weight.nice"
        self._by_nice = KernelFile(nice_file) if group.version == 2 and nice_file.exists() else None
        self._nice = 0

    @property
    def nice(self) -> int:
        return self._nice

    def set(self, nice: int) -> int:
        """Set a level, -20..19; returns it."""
        if nice != self._nice:
            self._write(nice)
        return nice

    def weight_of(self, nice: int) -> int:
        low, high = self._range
        scaled = round(self._base * PRIO_TO_WEIGHT[nice - LOWEST_NICE] / NICE_0_WEIGHT)
        return min(max(scaled, low), high)

    def read(self) -> int:
        """The level whose weight is nearest to the kernel's."""
        if self._by_nice is not None and self._base == V2_DEFAULT_WEIGHT:
            return int(self._by_nice.read())
        weight = int(self._weight.read())
        return min(range(LOWEST_NICE, 20), key=lambda nice: (abs(self.weight_of(nice) - weight), abs(nice)))

    def deviation(self) -> str | None:
        # Where a level was written the kernel shows its weight rounded in the same way.
        written, current = self.weight_of(self._nice), int(self._weight.read())
        return None if current == written else f"weight {current} instead of {written}"

    def adopt(self) -> int:
        """Take what somebody else has written for what holds; returns the level nearest to it."""
        self._nice = self.read()
        return self._nice

    def rebase(self) -> None:
        """Put back in the end what somebody else has written, where that is so."""
        if self.deviation() is not None:
            self._original = int(self._weight.read())

    @property
    def original(self) -> int:
        return self._original

    def reassert(self) -> int:
        self._write(self._nice)
        return self._nice

    def deploy(self, request_mcpu: float | None) -> None:
        """Take the weight that a Kubernetes CPU request stands for, or none: the original weight, for nice 0."""
        base = self._original if request_mcpu is None else self._weight_of_request(request_mcpu)
        self._weight.write(b"%d" % base)
        self._base, self._nice = base, 0

    def _write(self, nice: int) -> None:
        if self._by_nice is not None and self._base == V2_DEFAULT_WEIGHT:
            self._by_nice.write(b"%d" % nice)
        else:
            self._weight.write(b"%d" % self.weight_of(nice))
        self._nice = nice

    def _weight_of_request(self, request_mcpu: float) -> int:
        """As the kubelet (``MilliCPUToShares``) and, for version 2, the container runtime turn it into a weight."""
        low, high = V1_SHARES_RANGE
        shares = min(max(int(request_mcpu * NICE_0_WEIGHT / 1000), low), high)
        if self._version == 1:
            return shares
        # runc, libcontainer/cgroups: ConvertCPUSharesToCgroupV2Value
        return 1 + (shares - low) * (V2_WEIGHT_RANGE[1] - 1) // (high - low)

    def restore(self) -> None:
        if int(self._weight.read()) != self._original:
            self._weight.write(b"%d" % self._original)
        self._base, self._nice = self._original, 0

    def close(self) -> None:
        self._weight.close()
        if self._by_nice is not None:
            self._by_nice.close()
