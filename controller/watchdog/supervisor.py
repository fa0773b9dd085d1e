"""The process that restores the knobs when its controller dies or hangs; started by it, before the first write.

It waits for one of three events. The controller dies: everything is restored from the journal. It hangs, that is, the
tick ring has no new heartbeat while this process was running: it is killed first, since it must not write later, and
everything is restored. It reports that it has restored everything itself, and the journal is empty: nothing is left to
do.

It restores from the journal in memory that both share (`journal_memory`), since files may be removed or changed. The
file is for the next start after both have died.

It ignores SIGINT, SIGTERM, SIGHUP and SIGQUIT, which a service manager sends to all processes of a service, because it
has to outlive the controller; then it ends by itself.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import select
import signal
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from slicepilot.controller.actuators.cilium.throttle import OpenMaps
from slicepilot.controller.record.header import Pulse
from slicepilot.controller.system.bpf.libc import call
from slicepilot.controller.system.cgroup import cgroup_mounts
from slicepilot.controller.system.confinement import OFF, confine_supervisor
from slicepilot.controller.system.realtime import BEST_NICE, FIFO_PRIORITY, MCL_CURRENT, MCL_FUTURE, lift_realtime_limit
from slicepilot.data.files import PRIVATE, remove_file, replace_file

from .journal import Journal
from .journal_memory import JournalMemory
from .restore import RestoreReport, restore

LOOKS_PER_HANG = 10
SLACK_PART = 4  # a wait may count as longer than planned by this part of an interval
START_GRACE_S = 30.0  # until the first beat: before it ticks a controller compiles and warms up


class HangDetector:
    """Measures the time without a heartbeat, during which this process was running.

    A suspended machine or a stopped supervisor proves nothing about the controller: a wait counts for at most its
    planned time. ``hang_s`` without a heartbeat count as a hang.
    """

    def __init__(self, beat_ns: int, hang_s: float) -> None:
        self._beat_ns, self._hang_ns = beat_ns, round(hang_s * 1e9)
        self._interval_ns = self._hang_ns // LOOKS_PER_HANG
        self._silent_ns, self._limit_ns = 0, round(max(hang_s, START_GRACE_S) * 1e9)

    def next_look_ns(self) -> int:
        """How long to wait before the next look."""
        return max(min(self._interval_ns, self._limit_ns - self._silent_ns), 0)

    def look(self, beat_ns: int, began_ns: int, now_ns: int) -> bool:
        """Update with the newest heartbeat after a wait; returns whether it is a hang."""
        waited_ns = min(now_ns - began_ns, self._interval_ns + self._interval_ns // SLACK_PART)
        if beat_ns != self._beat_ns:
            self._beat_ns, self._limit_ns = beat_ns, self._hang_ns
            self._silent_ns = min(max(now_ns - beat_ns, 0), waited_ns)
        else:
            self._silent_ns += waited_ns
        return self._silent_ns >= self._limit_ns


IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
RESTORED_FILE = "restored.json"
DISARM, LINK = b"disarm", b"link"
MOST_LINKS = 200  # made since it has started; older links are of removed interfaces
DEATH_TIMEOUT_S = 1.0
PIDFD_THREAD = os.O_EXCL  # linux/pidfd.h
MCL_ONFAULT = 4  # linux/mman.h
LEAST_OOM_SCORE = -1000
STAYS = "stays (leave_groups: false)"

Cause = Literal["died", "hung", "disarmed"]


def main() -> int:
    """Exit code 0 if nothing is left to restore, 1 if something could not be restored."""
    options = json.loads(sys.argv[1])
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    channel = socket.socket(fileno=options["channel"])
    try:
        supervisor = Supervisor(options, channel)
    except (OSError, ValueError) as error:
        channel.send(json.dumps({"error": str(error)}).encode())
        return 1
    with contextlib.suppress(OSError):  # the controller may be dead by now
        # First, because a group may limit CPU time and priority.
        groups = _leave_groups() if options["leave_groups"] else STAYS
        facts = supervisor.prepare() | {"groups": groups}
        facts["confined"] = confine_supervisor(supervisor.maps.any) if options["harden"] else OFF
        channel.send(json.dumps(facts).encode())
    return supervisor.restore(supervisor.wait())


class Supervisor:
    """Watches a controller.

    Args:
        options: ``state``, the folder in which it reports what it has restored; ``journal``, the file, removed when
            everything was restored; ``memory``, the descriptor of the journal from which it restores; ``ring``, the
            tick ring with the controller's heartbeat; ``pid`` of the controller, which has started this process;
            ``sentinel``, id of an idle thread of the controller; ``hang_s`` without a heartbeat that count as a hang.
        channel: on which the controller reports that it has restored everything itself.

    Attributes:
        maps: of Cilium in the journal, opened by `prepare`, before this process is confined.

    Raises:
        OSError, JournalError, ValueError: journal or ring cannot be read.
    """

    def __init__(self, options: dict[str, Any], channel: socket.socket) -> None:
        self._state, self._path = Path(options["state"]), Path(options["journal"])
        self._pid, self._hang_s, self._channel = options["pid"], options["hang_s"], channel
        self._links: list[int] = []
        self._memory = JournalMemory(options["memory"])
        self._journal = Journal.parse(self._memory.read(), str(self._path))
        self._pulse = Pulse(Path(options["ring"]))
        self._process = os.pidfd_open(self._pid)
        self._sentinel = _thread(options["sentinel"], self._process)
        # If the parent has died, another process may have its number.
        self._orphan = os.getppid() != self._pid
        self._reported = False
        self.maps = OpenMaps()
        self.noticed_ns = 0

    def prepare(self) -> dict[str, Any]:
        """Load everything and be ready; returns facts for the controller's log."""
        restore(self._journal, dry_run=True, maps=self.maps)
        return {"pid": os.getpid(), **_be_ready()}

    def wait(self) -> Cause:
        """Wait for one of the three events; sets `noticed_ns` (CLOCK_MONOTONIC)."""
        poller = select.poll()
        poller.register(self._sentinel, select.POLLIN)
        poller.register(self._channel, select.POLLIN)
        detector = HangDetector(self._pulse.beat_ns(), self._hang_s)
        cause: Cause | None = "died" if self._orphan else None
        while cause is None:
            began_ns = time.monotonic_ns()
            ready = {descriptor for descriptor, _ in poller.poll(math.ceil(detector.next_look_ns() / 1e6))}
            self.noticed_ns = time.monotonic_ns()
            if self._sentinel in ready:
                cause = "died"
            elif self._channel.fileno() in ready and self._disarmed(poller):
                cause = "disarmed"
            elif detector.look(self._pulse.beat_ns(), began_ns, self.noticed_ns):
                cause = "hung"
        self.noticed_ns = self.noticed_ns or time.monotonic_ns()
        return cause

    def restore(self, cause: Cause) -> int:
        """Restore if the cause requires it; returns the exit code."""
        if cause == "disarmed" or not self._memory.read():  # it may still be ending
            return 0
        with contextlib.suppress(ProcessLookupError):  # it may be dead altogether
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        self._dead(self._sentinel, DEATH_TIMEOUT_S)
        report = self._restore(cause)
        if not self._dead(self._process, 0.0):
            # None of its threads runs any more, but the kernel may still complete its system calls.
            self._dead(self._process, None)
            report = self._restore(cause)
        if report is None:
            return 0
        if report.failed:
            return 1
        try:
            remove_file(self._path)
        except OSError as error:
            _log(f"{self._path}: remove the journal: {error.strerror}")
        return 0

    def _disarmed(self, poller: select.poll) -> bool:
        """Whether the controller has restored everything; a closed channel is not enough."""
        message, links, _, _ = socket.recv_fds(self._channel, len(DISARM), MOST_LINKS)
        if links:  # kept open: `slicepilot.controller.system.bpf.libbpf.links_held`
            self._links += links
            while len(self._links) > MOST_LINKS:
                os.close(self._links.pop(0))
            return False
        if message != DISARM:
            poller.unregister(self._channel)
            return False
        return not self._memory.read()

    @staticmethod
    def _dead(pidfd: int, timeout_s: float | None) -> bool:
        """Whether a process or thread has ended, at the latest after so long."""
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(None if timeout_s is None else 1e3 * timeout_s))

    def _restore(self, cause: Cause) -> RestoreReport | None:
        """Restore from the present journal, and write what was done to the state folder, with times of CLOCK_MONOTONIC;
        None if the controller has restored itself."""
        data = self._memory.read()
        if not data:
            return None
        report = restore(Journal.parse(data, str(self._path)), maps=self.maps)
        finished_ns = time.monotonic_ns()
        if not self._reported or report.restored:
            times = {"time_ns": time.time_ns(), "noticed_ns": self.noticed_ns, "finished_ns": finished_ns}
            document = {"cause": cause, "pid": self._pid, **times, **asdict(report)}
            try:
                replace_file(self._state / RESTORED_FILE, json.dumps(document, indent=1).encode(), PRIVATE)
            except OSError as error:
                _log(f"{self._state}: write what was restored: {error.strerror}")
            _log(f"controller {self._pid} {cause}: {report}")
        self._reported = True
        return report


def _be_ready() -> dict[str, str]:
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


def _leave_groups() -> str:
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


def _thread(thread: int, process: int) -> int:
    """A descriptor that signals a thread's death; before Linux 6.9 the process's, which comes later.

    The death of a process shows when its memory has been taken apart, which takes tens of milliseconds on a
    busy machine. A thread that is neither the first nor the last of them dies at once.
    """
    try:
        return os.pidfd_open(thread, PIDFD_THREAD)
    except OSError:
        return process


def _log(line: str) -> None:
    with contextlib.suppress(OSError):
        print(f"slicepilot supervisor: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
