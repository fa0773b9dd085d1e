"""Nice of group scope: the CPU weight of a slice's cgroup, which ranks whole slices against each other."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from slicepilot.controller.system.cgroup import CgroupVersion, CpuGroup
from slicepilot.controller.system.kernel_file import KernelFile
from slicepilot.data.nice_weights import LOWEST_NICE, NICE_0_WEIGHT, PRIO_TO_WEIGHT

V1_SHARES_RANGE = (2, 262_144)  # kernel/sched/sched.h: MIN_SHARES, MAX_SHARES
V2_WEIGHT_RANGE = (1, 10_000)  # Documentation/admin-guide/cgroup-v2.rst, cpu.weight
V2_DEFAULT_WEIGHT = 100
NICE_LEVELS = range(LOWEST_NICE, LOWEST_NICE + len(PRIO_TO_WEIGHT))
KUBELETS = ("kubepods", "kubepods.slice")


def weight_file(group: CpuGroup) -> KernelFile:
    """The file that holds a group's weight: ``cpu.shares`` or ``cpu.weight``; raises ActuatorError."""
    return KernelFile(group.path / ("cpu.shares" if group.version == 1 else "cpu.weight"))


def weight_refusal(group: CpuGroup) -> str:
    """Why the kernel takes no weight for a group; empty where it does.

    A group of the class SCHED_IDLE has none (Documentation/admin-guide/cgroup-v2.rst, ``cpu.idle``; in systemd
    CPUWeight=idle); its ``cpu.weight`` reads 0 then. Kernels before 5.15 have no such file.
    """
    try:
        idle = (group.path / "cpu.idle").read_bytes().strip() == b"1"
    except OSError:
        idle = False
    return f"{group.path}/cpu.idle is 1 (CPUWeight=idle): the kernel refuses weights" if idle else ""


def current_weight(group: CpuGroup) -> int | None:
    """The present weight of a group, None where the kernel refuses a weight; raises ActuatorError."""
    with contextlib.closing(weight_file(group)) as file:
        return None if weight_refusal(group) else int(file.read())


def shares_of_request(request_mcpu: float) -> int:
    """The kubelet's ``cpu.shares`` for a CPU request (kubernetes, ``MilliCPUToShares``)."""
    low, high = V1_SHARES_RANGE
    return min(max(int(request_mcpu * NICE_0_WEIGHT / 1000), low), high)


def linear_weight(shares: int) -> int:
    """``cpu.weight`` of shares by runc before 1.3.2 and crun before 1.23: 1 CPU is 39."""
    low, high = V1_SHARES_RANGE
    return 1 + (shares - low) * (V2_WEIGHT_RANGE[1] - 1) // (high - low)


def quadratic_weight(shares: int) -> int:
    """``cpu.weight`` of shares by runc from 1.3.2 on (opencontainers/cgroups, ``ConvertCPUSharesToCgroupV2Value``;
    runc#4772, kubernetes#131216): 1 CPU is 100, the weight that groups have by default."""
    low, high = V1_SHARES_RANGE
    if not low < shares < high:
        return V2_WEIGHT_RANGE[shares >= high]
    doublings = math.log2(shares)
    return math.ceil(10 ** ((doublings * doublings + 125 * doublings) / 612 - 7 / 34))


def weight_of_request(group: CpuGroup, request_mcpu: float, original: int, original_request_mcpu: float = 0.0) -> int:
    """The weight of a CPU request, by the formula that the node's container runtime uses.

    Version 1 has a single formula. On version 2 the runtime's formula is inferred. If the original request is known and
    only one formula gives the original weight, it is that formula. Otherwise it is linear if the weight of all pods
    together is at most the linear weight of all CPUs, as a kubelet with that formula sets it, and else quadratic, where
    1 CPU is the default weight, which services beside the group have.

    Args:
        group: the group that gets the weight.
        request_mcpu: the request to convert.
        original: the group's original weight.
        original_request_mcpu: the request from which the original weight follows; 0: not known.
    """
    shares = shares_of_request(request_mcpu)
    if group.version == 1:
        return shares
    if original_request_mcpu > 0:
        declared = shares_of_request(original_request_mcpu)
        linear, quadratic = linear_weight(declared), quadratic_weight(declared)
        if linear != quadratic and original in {linear, quadratic}:
            return linear_weight(shares) if original == linear else quadratic_weight(shares)
    return linear_weight(shares) if _linear_pods(group.path) else quadratic_weight(shares)


def _linear_pods(group: Path) -> bool:
    """Whether a group is the kubelet's, and the weight of all pods together that of the linear formula."""
    root = next((folder for folder in group.resolve().parents if folder.name in KUBELETS), None)
    if root is None:
        return False
    try:
        weight = int((root / "cpu.weight").read_bytes())
    except (OSError, ValueError):
        return False
    return weight <= linear_weight(shares_of_request(1e3 * (os.cpu_count() or 1)))


@dataclass(frozen=True)
class WeightScale:
    """The weights of nice levels at a group.

    Attributes:
        version: of the hierarchy.
        base: the weight of nice 0.
        by_nice: levels are written as such (``cpu.weight.nice``), so that each is distinct.
    """

    version: CgroupVersion
    base: int
    by_nice: bool = False

    @classmethod
    def of(cls, group: CpuGroup, base: int) -> WeightScale:
        by_nice = group.version == 2 and base == V2_DEFAULT_WEIGHT and (group.path / "cpu.weight.nice").exists()
        return cls(group.version, base, by_nice)

    def weight_of(self, nice: int) -> int:
        low, high = V1_SHARES_RANGE if self.version == 1 else V2_WEIGHT_RANGE
        scaled = round(self.base * PRIO_TO_WEIGHT[nice - LOWEST_NICE] / NICE_0_WEIGHT)
        return min(max(scaled, low), high)

    def level_of(self, nice: int) -> int:
        """The level nearest to 0 that has the same weight."""
        return self._levels[nice - LOWEST_NICE]

    @cached_property
    def _levels(self) -> tuple[int, ...]:
        """Computed once: a level that is rounded differs from the level that holds, so it is requested at every
        tick."""
        return tuple(map(self._nearest, NICE_LEVELS))

    def _nearest(self, nice: int) -> int:
        step = 1 if nice < 0 else -1
        while not self.by_nice and nice != 0 and self.weight_of(nice + step) == self.weight_of(nice):
            nice += step
        return nice

    def same(self, low: int, high: int) -> list[range]:
        """Levels of a range that have the same weight, in runs of two or more."""
        runs: dict[int, list[int]] = {}
        for nice in range(low, high + 1):
            runs.setdefault(self.level_of(nice), []).append(nice)
        return [range(run[0], run[-1] + 1) for run in runs.values() if len(run) > 1]


class GroupWeight:
    """Multiplies the original weight of the group by the kernel's factor for a nice level.

    A pod starts with a weight that follows from its CPU request, so nice 0 is that weight and the promises that come
    with it, on cgroup v1 (``cpu.shares``) as on v2 (``cpu.weight``). On v2 a group of the default weight goes through
    ``cpu.weight.nice``, which has the table's full resolution where ``cpu.weight`` rounds nice 19 from 1.46 to 1.

    A small weight is the same at several levels: of those the level nearest to 0 counts, and is what `set` returns.

    Args:
        group: the slice's cgroup.
        request_mcpu: the CPU request from which its original weight follows; 0: not known.

    Attributes:
        original: the weight that `restore` puts back.

    Raises:
        ActuatorError: the group has no weight, or the kernel refuses a value.
    """

    def __init__(self, group: CpuGroup, request_mcpu: float = 0.0) -> None:
        self._group, self._request_mcpu = group, request_mcpu
        self._weight = weight_file(group)
        self.original = int(self._weight.read())
        self._scale = WeightScale.of(group, self.original)
        nice_file = group.path / "cpu.weight.nice"
        self._by_nice = KernelFile(nice_file) if group.version == 2 and nice_file.exists() else None
        self._nice = 0

    def set(self, nice: int) -> int:
        """Set a level, -20..19; returns the level of the same weight that is nearest to 0."""
        level = self._scale.level_of(nice)
        if level != self._nice:
            self._write(level)
        return level

    def read(self) -> int:
        """The level whose weight is nearest to the kernel's."""
        if self._by_nice is not None and self._scale.by_nice:
            return int(self._by_nice.read())
        weight = int(self._weight.read())
        return min(NICE_LEVELS, key=lambda nice: (abs(self._scale.weight_of(nice) - weight), abs(nice)))

    def deviation(self) -> str | None:
        # Where a level was written the kernel shows its weight rounded in the same way.
        written, current = self._scale.weight_of(self._nice), int(self._weight.read())
        if current == written:
            return None
        return "; ".join(filter(None, (f"weight {current} instead of {written}", weight_refusal(self._group))))

    def adopt(self) -> int:
        """Take the value that another program has written as the current level; returns the nearest level."""
        self._nice = self.read()
        return self._nice

    def rebase(self) -> None:
        """Restore at the end the weight that another program has written, unless it has made the group idle."""
        if self.deviation() is not None and not weight_refusal(self._group):
            self.original = int(self._weight.read())

    def reassert(self) -> int:
        self._write(self._nice)
        return self._nice

    def deploy(self, request_mcpu: float | None) -> None:
        """Use the weight of a Kubernetes CPU request, None the original weight, for nice 0."""
        base = self.original
        if request_mcpu is not None:
            base = weight_of_request(self._group, request_mcpu, self.original, self._request_mcpu)
        self._weight.write(b"%d" % base)
        self._scale, self._nice = WeightScale.of(self._group, base), 0

    def _write(self, nice: int) -> None:
        if self._by_nice is not None and self._scale.by_nice:
            self._by_nice.write(b"%d" % nice)
        else:
            self._weight.write(b"%d" % self._scale.weight_of(nice))
        self._nice = nice

    def restore(self) -> None:
        """Restore the original weight, unless another program has made the group idle."""
        if int(self._weight.read()) != self.original and not weight_refusal(self._group):
            self._weight.write(b"%d" % self.original)
        self._scale, self._nice = WeightScale.of(self._group, self.original), 0

    def close(self) -> None:
        self._weight.close()
        if self._by_nice is not None:
            self._by_nice.close()
