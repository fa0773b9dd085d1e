"""How often each slice's CPU quota ran out: ``nr_throttled / nr_periods`` of its group's ``cpu.stat``."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from pathlib import Path

from slicepilot.controller.system.cgroup_paths import awaited
from slicepilot.controller.system.kernel_file import ActuatorError, KernelFile
from slicepilot.env.arrays import FloatArray
from slicepilot.env.telemetry import Telemetry

# The kernel counts CFS periods only while the group has work. After this long without a period the group was idle.
QUIET_NS = 200_000_000
REFRESH_S = 0.025


class ThrottleMeter:
    """Keeps each slice's share of throttled CFS periods.

    If no CFS period has ended in a control period, as with control periods shorter than the CFS period, the last ratio
    stays. Only groups with a quota are read; the others are never throttled. Short control periods read some slices
    each, in turn, so that each is read about every `REFRESH_S`: reading costs a system call and some parsing per slice.

    Args:
        cgroups: one per slice, cgroup v1 or v2; None for a slice without a cgroup, which is never throttled. `heal`
            opens groups that do not exist yet.
        period_s: how often `fill` is called.

    Raises:
        ActuatorError: a group has no ``cpu.stat``, or no CFS bandwidth control.
    """

    def __init__(self, cgroups: Sequence[Path | None], period_s: float) -> None:
        self._cgroups = tuple(cgroups)
        self._slices = [None if path is None or awaited(path) else _Slice(path) for path in cgroups]
        self._ratios = [0.0] * len(cgroups)
        self._per_call = min(len(cgroups), math.ceil(len(cgroups) * period_s / REFRESH_S))
        self._next = 0
        self._limited: set[int] = set()
        self._limits = b""

    def fill(self, telemetry: Telemetry, limits_mcpu: FloatArray) -> None:
        """Write the ratios under the limits (S, 1) that hold; a group that has vanished reads 0.

        Without any limit nothing is read.
        """
        limits = limits_mcpu.tobytes()
        if limits != self._limits:
            self._limits = limits
            self._limited = {index for index, limit in enumerate(limits_mcpu.ravel().tolist()) if limit != math.inf}
            self._ratios = [ratio if index in self._limited else 0.0 for index, ratio in enumerate(self._ratios)]
        if not self._limited:
            telemetry.throttled_ratio[:] = 0.0
            return
        known, count = self._ratios, len(self._slices)
        for _ in range(self._per_call):
            self._next = index = (self._next + 1) % count
            reader = self._slices[index]
            if reader is not None and index in self._limited:
                known[index] = reader.ratio()
        telemetry.throttled_ratio[:, 0] = known

    def heal(self) -> None:
        """Open the files of groups anew that were removed and made again, or only now; between ticks."""
        for index, (path, reader) in enumerate(zip(self._cgroups, self._slices, strict=True)):
            if path is not None and (reader is None or reader.vanished):
                with contextlib.suppress(ActuatorError):
                    self._slices[index] = _Slice(path)
                    if reader is not None:
                        reader.file.close()

    def close(self) -> None:
        for reader in self._slices:
            if reader is not None:
                reader.file.close()


class _Slice:
    def __init__(self, cgroup: Path) -> None:
        self.file = KernelFile(cgroup / "cpu.stat", writable=False)
        self._text = self.file.read()
        words = self._text.split()
        if b"nr_throttled" not in words:
            raise ActuatorError(f"{self.file.path}: no nr_throttled; needed: a kernel with CONFIG_CFS_BANDWIDTH")
        self._at = words.index(b"nr_periods") + 1, words.index(b"nr_throttled") + 1
        self._counts = self._parse()
        self._ratio, self._seen_ns = 0.0, 0
        self.vanished = False

    def ratio(self) -> float:
        try:
            text = self.file.read()
        except ActuatorError:
            self.vanished = True
            return 0.0
        now_ns = time.monotonic_ns()
        if text == self._text:
            return self._ratio if now_ns - self._seen_ns < QUIET_NS else 0.0
        self._text = text
        periods, throttled = self._parse()
        ended = periods - self._counts[0]
        if ended > 0:
            self._ratio, self._seen_ns = min((throttled - self._counts[1]) / ended, 1.0), now_ns
            self._counts = periods, throttled
        return self._ratio

    def _parse(self) -> tuple[int, int]:
        words = self._text.split()
        return int(words[self._at[0]]), int(words[self._at[1]])
