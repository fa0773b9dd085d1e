"""An actuator that cannot write: what others have set, read through descriptors that are open for reading only."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import numpy as np

from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.cgroup_paths import awaited
from slicepilot.controller.system.kernel_file import ActuatorError, KernelFile
from slicepilot.data.nice_weights import nearest_nice
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Receipt
from slicepilot.env.knobs import KnobName, Knobs

from .node import SliceTargets
from .shared_cpu import SharedCpu

Row = tuple[float, float, float]  # CPU limit in mCPU, nice, egress rate
NONE: Row = (math.inf, 0.0, math.inf)


class ShadowActuator:
    """Takes knobs (S, 1) and sets none; its receipts say what the kernel's files say.

    Nice is that of group scope, relative to the original weight. An egress rate is not read: nobody else's shaper
    has a meaning that is known here.

    Args:
        targets: what is read.
        missing_ok: a group that is not there now has gone: "none", until it comes back. A group that is made
            when control begins is "none" as well, and not reported.

    Raises:
        ActuatorError: a group is missing or has no CPU knobs.
    """

    powerless = False

    def __init__(self, targets: Sequence[SliceTargets], missing_ok: bool = False) -> None:
        self._targets, self._shared = tuple(targets), SharedCpu(targets)
        self._readers: list[_Reader | None] = []
        try:
            for target in targets:
                self._readers.append(_opened(target, missing_ok))
            self.receipt = Receipt(self.read())
        except BaseException:
            self.close()
            raise

    @property
    def not_moved(self) -> dict[tuple[str, KnobName], str]:
        """Empty: in shadow no knob is to be moved."""
        return {}

    def apply(self, knobs: Knobs) -> Receipt:
        """Nothing is set; says what held when it was last read."""
        del knobs
        return self.receipt

    def rehearse(self) -> None:
        """There is nothing to rehearse."""

    def deploy(self, request_mcpu: FloatArray | None) -> None:
        """Nothing is set."""

    def refresh(self) -> list[str]:
        """Read anew what others have set; groups that have gone and come back are opened again."""
        report: list[str] = []
        current = self._knobs([self._renewed(index, report) for index in range(len(self._targets))])
        if not current.same_as(self.receipt.applied):
            self.receipt = Receipt(current)
        return report

    def _renewed(self, index: int, report: list[str]) -> Row:
        """What a slice's group has; where that cannot be read, its reader is exchanged, and why is reported."""
        target, reader = self._targets[index], self._readers[index]
        awaits, gone = _is_awaited(target), False
        if reader is not None:
            try:
                if not awaits:
                    return reader.read()
            except ActuatorError as error:
                gone = True
                report.append(f"{target.name}: {error}")
            reader.close()
            self._readers[index] = None
        if awaits:
            return NONE
        try:
            fresh = self._readers[index] = _Reader(target)
            return fresh.read()
        except ActuatorError as error:
            if not gone:
                report.append(f"{target.name}: {error}")
            return NONE

    def read(self) -> Knobs:
        """The kernel's values; "none" for a group that has gone."""
        rows = []
        for reader in self._readers:
            row = NONE
            if reader is not None:
                with contextlib.suppress(ActuatorError):
                    row = reader.read()
            rows.append(row)
        return self._knobs(rows)

    def _knobs(self, rows: Sequence[Row]) -> Knobs:
        values = np.array(np.asarray(rows, np.float32).T, order="C")[..., None]
        self._shared.part(values, None)
        return Knobs(values)

    def close(self) -> None:
        for reader in self._readers:
            if reader is not None:
                reader.close()
        self._readers = []


def _is_awaited(target: SliceTargets) -> bool:
    return target.cgroup is not None and awaited(target.cgroup)


def _opened(target: SliceTargets, missing_ok: bool) -> _Reader | None:
    if _is_awaited(target):
        return None
    try:
        return _Reader(target)
    except ActuatorError:
        if missing_ok and target.cgroup is not None and not target.cgroup.exists():
            return None
        raise


class _Reader:
    """Quota and weight of one group, version 1 or 2; "none" where there is no group."""

    def __init__(self, target: SliceTargets) -> None:
        self._files: list[KernelFile] = []
        if target.cgroup is None:
            return
        group = CpuGroup.at(target.cgroup)
        names = (
            ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares") if group.version == 1 else ("cpu.max", "cpu.weight")
        )
        try:
            for name in names:
                self._files.append(KernelFile(group.path / name, writable=False))
            self._original_weight = self._words()[2]
        except BaseException:
            self.close()
            raise

    def read(self) -> Row:
        """CPU limit in mCPU, nice, and an egress rate that is not known."""
        if not self._files:
            return NONE
        quota, period, weight = self._words()
        return 1e3 * quota / period, nearest_nice(weight / self._original_weight), math.inf

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _words(self) -> tuple[float, float, float]:
        """Quota and period in us (inf: no quota), weight."""
        quota, period, weight = b" ".join(file.read() for file in self._files).split()
        return (math.inf if quota in {b"max", b"-1"} else float(quota)), float(period), float(weight)
