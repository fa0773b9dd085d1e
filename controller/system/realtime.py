"""Keeping the loop's thread on time while others want every CPU."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .bpf.libc import call
from .cores import cpus_beside
from .kernel_file import kernel_lines

MCL_CURRENT, MCL_FUTURE = 1, 2  # linux/mman.h
FIFO_PRIORITY = 10  # above no kernel thread that has a priority of its own
BEST_NICE = -20
BACKGROUND_NICE, BACKGROUND_OOM_SCORE = 10, 500
START_RT_US = 5_000_000


@dataclass(frozen=True)
class SchedulingClass:
    """How a thread is scheduled.

    Attributes:
        name: ``SCHED_FIFO``, ``nice -20`` or ``unchanged``.
        reason: why it is not the better class; empty for the best.
    """

    name: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name


@contextlib.contextmanager
def on_time(lock_memory: bool = False) -> Iterator[SchedulingClass]:
    """Run the calling thread ahead of all ordinary threads; what it was comes back at the end.

    SCHED_FIFO (sched(7)) is tried first: its thread runs as soon as it wakes. Not permitted without CAP_SYS_NICE, nor,
    in a kernel with CONFIG_RT_GROUP_SCHED, in a cgroup whose ``cpu.rt_runtime_us`` is 0; then nice -20, and without
    permission for that, nothing. ``lock_memory`` keeps all pages in memory (mlockall(2)); it raises OSError if that is
    refused.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    chosen = _raise_priority()
    try:
        if lock_memory:
            call("mlockall", MCL_CURRENT | MCL_FUTURE)
        yield chosen
    finally:
        if lock_memory:
            call("munlockall")
        if chosen.name == "SCHED_FIFO":
            os.sched_setscheduler(0, policy, parameters)
        elif chosen.name != "unchanged":
            os.setpriority(os.PRIO_PROCESS, 0, nice)


def start_ahead() -> None:
    """Run the main thread ahead of ordinary threads until `stop_being_ahead`, where permitted; for a start or an end.

    To import and to load a policy takes four seconds of CPU time, and more than a minute of a node whose UPFs want all
    CPUs. A better nice helps less: UPFs in groups of their own, and autogroups (sched(7)), count against the whole
    group. Whatever is started meanwhile is ordinary. When this thread has not waited for anything for seconds, since
    it compiles kernels, it becomes ordinary by itself (RLIMIT_RTTIME, getrlimit(2)). Under a hard limit of less than
    that, at which the kernel would kill it, it stays ordinary.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    in_main = threading.current_thread() is threading.main_thread()  # the only one that can handle signals
    if not in_main or (hard != resource.RLIM_INFINITY and hard <= START_RT_US):
        return
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        return
    signal.signal(signal.SIGXCPU, lambda *_: stop_being_ahead())
    resource.setrlimit(resource.RLIMIT_RTTIME, (START_RT_US, hard))


def stop_being_ahead() -> None:
    """End what `start_ahead` began; nothing if it did not."""
    if os.sched_getscheduler(0) == os.SCHED_RR | os.SCHED_RESET_ON_FORK:
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        lift_realtime_limit()
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)


def lift_realtime_limit() -> None:
    """Replace an inherited limit of real-time CPU time (RLIMIT_RTTIME) by the administrator's."""
    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    resource.setrlimit(resource.RLIMIT_RTTIME, (hard, hard))


@contextlib.contextmanager
def pinned(cpu: int | None) -> Iterator[None]:
    """Run the calling thread on one CPU; none leaves it where the kernel wants it. Raises OSError for a CPU that is not
    there."""
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """No garbage collections meanwhile: what exists is kept out of later collections, too, for as long as this
    lasts."""
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def stay_just_behind_the_loop() -> None:
    """Run this thread ahead of everything but the loop's from now on, where that is permitted: while it has the
    interpreter, or starts a process, the loop waits for it, and with it for whatever keeps it from the CPU. Without
    SCHED_FIFO it has, as the loop, the next best nice.

    There is no way back: it would be taken with the interpreter in hand, and the kernel looks for somebody else to run
    at once (``__sched_setscheduler``, kernel/sched/syscalls.c). A thread beside the loop that is often busy for more
    than a tenth of a second belongs in another process.

    Processes inherit the class until they choose their own, so that their start does not hold up the loop either.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(FIFO_PRIORITY - 1))
    except PermissionError:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, BEST_NICE + 1)


@contextlib.contextmanager
def threads_inherit() -> Iterator[None]:
    """Threads that are started meanwhile have this thread's scheduling class from the beginning, where permitted.

    A thread begins with the interpreter in hand. As an ordinary thread it would run its first lines only when UPFs that
    are favoured leave it a CPU, and the loop would wait for that, for a second and more.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, policy & ~os.SCHED_RESET_ON_FORK, parameters)
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, policy, parameters)


class ThreadBesideTheLoop(threading.Thread):
    """A daemon thread with a priority just behind the loop's (`stay_just_behind_the_loop`).

    Args:
        target: what it does.
        name: of the thread.
    """

    def __init__(self, target: Callable[[], object], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)

    def start(self) -> None:
        with threads_inherit():
            super().start()

    def run(self) -> None:
        stay_just_behind_the_loop()
        super().run()


def let_others_go_first(pid: int) -> None:
    """Make an ordinary process of a process that was started by a thread ahead of others: it inherits that. Nothing for
    a process that has ended, or without permission."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, pid, 0)


def stay_in_the_background(off_cpu: int | None = None) -> None:
    """Run this process at low priority, off the loop's CPU, and let the kernel kill it early when memory runs out.

    What is not permitted stays as it is: a runtime may have given the container a higher ``oom_score_adj`` that only
    CAP_SYS_RESOURCE lowers (proc_pid_oom_score_adj(5)).

    Args:
        off_cpu: the CPU to keep off; None for none.
    """
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, BACKGROUND_NICE)
    os.sched_setaffinity(0, cpus_beside(off_cpu))  # more than the thread that started this may have
    with contextlib.suppress(PermissionError):
        Path("/proc/self/oom_score_adj").write_text(str(BACKGROUND_OOM_SCORE))


def _raise_priority() -> SchedulingClass:
    try:
        # Threads and processes started meanwhile must not inherit it.
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(FIFO_PRIORITY))
        return SchedulingClass("SCHED_FIFO")
    except PermissionError:
        reason = _why_no_fifo()
    try:
        os.setpriority(os.PRIO_PROCESS, 0, BEST_NICE)
    except PermissionError:
        return SchedulingClass("unchanged", f"{reason}; nice {BEST_NICE} needs CAP_SYS_NICE as well")
    return SchedulingClass(f"nice {BEST_NICE}", reason)


def _why_no_fifo() -> str:
    with contextlib.suppress(OSError, ValueError):
        for line in kernel_lines(Path("/proc/self/cgroup")):
            _, controllers, group = line.split(":", 2)
            if "cpu" in controllers.split(","):
                budget = Path(f"/sys/fs/cgroup/cpu{group}/cpu.rt_runtime_us")
                if int(budget.read_text()) == 0:
                    return f"SCHED_FIFO: cgroup {group} has cpu.rt_runtime_us 0"
    return "SCHED_FIFO needs CAP_SYS_NICE"
