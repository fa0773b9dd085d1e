"""A folder of files in the place of a group of cgroup v2, for machines whose cpu controller is on version 1.

What the files accept and show is that of Documentation/admin-guide/cgroup-v2.rst ("CPU Interface Files") and of
kernel/sched/core.c: ``cpu.weight`` is 1 to 10,000, reads 0 and refuses values while ``cpu.idle`` is 1, and shows what
``cpu.weight.nice`` sets; ``cpu.max`` refuses a quota below ``cpu.max.burst`` and below 1 ms.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slicepilot.controller.system import kernel_file
from slicepilot.data.nice_weights import LOWEST_NICE, PRIO_TO_WEIGHT

FILES = {
    "cgroup.controllers": "cpu io\n",
    "cpu.max": "max 100000\n",
    "cpu.max.burst": "0\n",
    "cpu.weight": "100\n",
    "cpu.weight.nice": "0\n",
    "cpu.idle": "0\n",
    "cgroup.threads": "",
}


class V2Files:
    """The kernel behind such folders: values are written by `write`, or by `KernelFile`.

    Attributes:
        damages_burst: as kernels before 6.10 do at each write of ``cpu.max``.
        refused: writes that were refused, as (file, value).
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.damages_burst = False
        self.refused: list[tuple[str, str]] = []
        self._folders: set[Path] = set()
        self._pwrite: Callable[[int, bytes, int], int] = os.pwrite
        monkeypatch.setattr(kernel_file.os, "pwrite", self._written)

    def group(self, folder: Path, without: tuple[str, ...] = ()) -> Path:
        """Make a group, of a kernel without some of the files."""
        folder.mkdir(exist_ok=True)
        for name in FILES.keys() - set(without):
            (folder / name).write_text(FILES[name])
        self._folders.add(folder.resolve())
        return folder

    def write(self, file: Path, value: str) -> None:
        """As another program would."""
        fd = os.open(file, os.O_RDWR)
        try:
            self._written(fd, value.encode(), 0)
        finally:
            os.close(fd)

    def _written(self, fd: int, value: bytes, offset: int) -> int:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.parent not in self._folders:
            return self._pwrite(fd, value, offset)
        try:
            self._set(path.parent, path.name, value.decode())
        except OSError:
            self.refused.append((path.name, value.decode()))
            raise
        return len(value)

    def _set(self, group: Path, name: str, value: str) -> None:
        def read(file: str, default: str = "0") -> str:
            return (group / file).read_text().split()[0] if (group / file).exists() else default

        def show(file: str, text: object) -> None:
            if (group / file).exists():
                (group / file).write_text(f"{text}\n")

        idle = read("cpu.idle") == "1"
        if name == "cpu.max":
            quota, period = value.split()
            burst = int(read("cpu.max.burst"))
            if not 1000 <= int(period) <= 1_000_000 or (quota != "max" and int(quota) < max(1000, burst)):
                raise OSError(errno.EINVAL, value)
            show(name, f"{quota} {period}")
            if self.damages_burst:
                show("cpu.max.burst", burst // 1000)
        elif name == "cpu.max.burst":
            quota = read("cpu.max")
            if quota != "max" and int(value) > int(quota):
                raise OSError(errno.EINVAL, value)
            show(name, value)
        elif name == "cpu.weight":
            if not 1 <= int(value) <= 10_000:
                raise OSError(errno.ERANGE, value)
            if idle:
                raise OSError(errno.EINVAL, value)
            show(name, value)
            shares = int(value) * 1024 / 100
            show("cpu.weight.nice", min(range(-20, 20), key=lambda nice: abs(PRIO_TO_WEIGHT[nice + 20] - shares)))
        elif name == "cpu.weight.nice":
            if not -20 <= int(value) <= 19:
                raise OSError(errno.ERANGE, value)
            if idle:
                raise OSError(errno.EINVAL, value)
            show(name, value)
            show("cpu.weight", max(1, round(PRIO_TO_WEIGHT[int(value) - LOWEST_NICE] * 100 / 1024)))
        elif name == "cpu.idle":
            show(name, value)
            show("cpu.weight", 0 if value == "1" else 100)
            show("cpu.weight.nice", 0)
        else:
            raise OSError(errno.EINVAL, value)


@pytest.fixture(name="v2_files")
def v2_files_of(monkeypatch: pytest.MonkeyPatch) -> V2Files:
    return V2Files(monkeypatch)
