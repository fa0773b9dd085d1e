"""Keeps a process responsive on a machine that is out of CPU time and memory."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path

from slicepilot.controller.system.bpf.libc import call
from slicepilot.controller.system.cgroup import cgroup_mounts
from slicepilot.controller.system.realtime import BEST_NICE, FIFO_PRIORITY, MCL_CURRENT, MCL_FUTURE, lift_realtime_limit

MCL_ONFAULT = 4  # linux/mman.h
LEAST_OOM_SCORE = -1000


def be_ready() -> dict[str, str]:
    """Raise priority and lock memory as far as permitted, after everything was loaded; returns the result."""
    gc.collect()
    gc.freeze()
    gc.disable()
    scheduling, memory = _ahead_of_all(), "locked"
    try:
        call("mlockall", MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT)
    except OSError as error:
        memory = f"not locked ({error.strerror})"
    with contextlib.suppress(PermissionError):  # the last process to be killed when memory runs out
        Path("/proc/self/oom_score_adj").write_text(str(LEAST_OOM_SCORE))
    return {"scheduling": scheduling, "memory": memory}


def leave_groups() -> str:
    """Leave all cgroups for the root groups of their hierarchies; returns the result.

    A runtime ends a container that has no PID namespace of its own by SIGKILL to everything in its groups, also when
    its first process alone has ended (runc, ``signalAllProcesses``; containerd's shim, ``shouldKillAllOnExit``), and
    the kubelet does so with the groups of a pod that has gone. Root groups exist and are never removed.
    """
    refused = []
    for root in {mount.root: mount for mount in cgroup_mounts()}:
        try:
            (root / "cgroup.procs").write_text("0")  # the process that writes it
        except FileNotFoundError:  # something else is mounted over it
            continue
        except OSError as error:
            refused.append(f"{root}: {error.strerror}")
    return f"stays ({'; '.join(refused)})" if refused else "left"


def _ahead_of_all() -> str:
    """Schedule this process before the loop, which may hang. Threads inherit it."""
    lift_realtime_limit()
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(FIFO_PRIORITY + 1))
        return "SCHED_FIFO"
    except PermissionError:
        pass
    try:
        os.setpriority(os.PRIO_PROCESS, 0, BEST_NICE)
        return f"nice {BEST_NICE}"
    except PermissionError:
        return "unchanged (needs CAP_SYS_NICE)"
