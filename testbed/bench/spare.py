"""CPUs kept busy with what others leave of them: no load that a live UPF would feel more than caches gone cold."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.kernel_file import ActuatorError

from .node import BUSY, EDGE, PREFIX, remove_group, remove_stale

SETTLE_S = 0.5  # for interpreters to start


@contextlib.contextmanager
def spare_time_used() -> Iterator[None]:
    """One busy process per CPU, of class SCHED_IDLE in a cgroup that is idle as well (``cpu.idle``, Linux 5.15).

    Raises:
        ActuatorError: no root, or a kernel without ``cpu.idle``: there such processes would take time from UPFs.
    """
    hierarchy = CpuHierarchy.find()
    parent = hierarchy.root / f"{PREFIX}{os.getpid()}"
    group = parent / EDGE
    remove_stale(hierarchy)
    busy: list[subprocess.Popen[bytes]] = []
    try:
        try:
            parent.mkdir()
            if hierarchy.version == 2:
                (parent / "cgroup.subtree_control").write_text("+cpu")
            group.mkdir()
            (parent / "cpu.idle").write_text("1")
        except OSError as error:
            raise ActuatorError.of(f"{error.filename or parent / 'cpu.idle'}: make an idle cgroup", error) from error
        for _ in range(os.cpu_count() or 1):
            busy.append(process := subprocess.Popen([sys.executable, "-P", "-c", BUSY]))
            os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
            (group / "cgroup.procs").write_text(str(process.pid))
        time.sleep(SETTLE_S)
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
        for path in (group, parent):
            remove_group(path)
