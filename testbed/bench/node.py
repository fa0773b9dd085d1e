"""A node to measure the loop on: cgroups, packet points and busy processes of its own, gone when it is closed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from slicepilot.controller.actuators.node import SliceTargets
from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.own_programs import environment, python
from slicepilot.controller.telemetry.points import NetPoint, SlicePoints
from slicepilot.env.slices import SliceSet
from slicepilot.testbed.lifecycle import cgroups

EDGE = "edge"  # a group without knobs, so that the CPUs stay saturated whatever the slices are limited to
LIFETIME_S = 600  # nothing outlives this, whatever happens to us
SETTLE_S = 0.5  # for interpreters to start
# Ctrl-C reaches the whole process group; these are ended by us.
BUSY = f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.alarm({LIFETIME_S})\nwhile True: pass"
PREFIX = "slicepilot-bench-"


class BenchNode:
    """Cgroups ``slicepilot-bench-PID/SLICE``, and a namespace with devices ``n3-I`` and ``n6`` under light traffic.

    Args:
        slices: number of slices, with a group and an N3 device each; all leave by the same N6 device.

    Raises:
        ActuatorError: no root, no cpu controller, no network namespaces; the message says which.
    """

    def __init__(self, slices: SliceSet) -> None:
        if os.geteuid() != 0:
            raise ActuatorError("bench loop needs root: it makes cgroups, network namespaces and BPF programs")
        self._slices = slices
        with contextlib.ExitStack() as undo:
            parent = undo.enter_context(_groups((*slices.names, EDGE)))
            self.cgroups, self._edge = [parent / name for name in slices.names], parent / EDGE
            self._netns = undo.enter_context(_traffic(len(slices)))
            self._undo = undo.pop_all()

    @property
    def points(self) -> list[SlicePoints]:
        """Where the probe measures."""
        exit_point = NetPoint(self._netns, "n6")
        return [
            SlicePoints(name, n3=NetPoint(self._netns, f"n3-{index}"), n6=exit_point, cgroup=group)
            for index, (name, group) in enumerate(zip(self._slices.names, self.cgroups, strict=True))
        ]

    @property
    def targets(self) -> list[SliceTargets]:
        """Where the knobs are; the egress rate is set on each slice's N3 device instead of N6."""
        return [
            SliceTargets(name, group, f"n3-{index}", self._netns)
            for index, (name, group) in enumerate(zip(self._slices.names, self.cgroups, strict=True))
        ]

    def saturate(self) -> None:
        """A busy process in every slice's group, and one for each CPU beside them."""
        self._undo.enter_context(_busy([*self.cgroups, *[self._edge] * (os.cpu_count() or 1)], os.SCHED_OTHER))

    def close(self) -> None:
        """End what was started, remove what was made; more than once does nothing."""
        self._undo.close()

    def __enter__(self) -> BenchNode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def spare_time_used() -> Iterator[None]:
    """One busy process per CPU, of class SCHED_IDLE in a cgroup that is idle as well (``cpu.idle``, Linux 5.15).

    The CPUs are kept busy with what others leave of them: no load that a live UPF would feel more than caches gone
    cold.

    Raises:
        ActuatorError: no root, or a kernel without ``cpu.idle``: there such processes would take time from UPFs.
    """
    with _groups((EDGE,)) as parent:
        try:
            (parent / "cpu.idle").write_text("1")
        except OSError as error:
            raise ActuatorError.of(f"{parent / 'cpu.idle'}: make an idle cgroup", error) from error
        with _busy([parent / EDGE] * (os.cpu_count() or 1), os.SCHED_IDLE):
            yield


@contextlib.contextmanager
def _groups(names: Sequence[str]) -> Iterator[Path]:
    """The cgroup of this process, with one of each name in it; whatever runs there at the end is killed.

    Groups that a process which was killed has left are removed, with the busy processes that it started in them.
    """
    hierarchy = CpuHierarchy.find()
    parent = hierarchy.root / f"{PREFIX}{os.getpid()}"
    for left in hierarchy.root.glob(f"{PREFIX}*"):
        if not Path(f"/proc/{left.name.removeprefix(PREFIX)}").exists():
            _remove(left)
    try:
        try:
            parent.mkdir()
            if hierarchy.version == 2:
                (parent / "cgroup.subtree_control").write_text("+cpu")
            for name in names:
                (parent / name).mkdir()
        except OSError as error:
            raise ActuatorError.of(f"{error.filename}: make cgroups", error) from error
        yield parent
    finally:
        if parent.is_dir():
            _remove(parent)


def _remove(parent: Path) -> None:
    for path in (*filter(Path.is_dir, parent.iterdir()), parent):
        cgroups.remove(path)


@contextlib.contextmanager
def _busy(groups: Sequence[Path], policy: int) -> Iterator[None]:
    """A busy process of a scheduling policy in each of these groups."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for group in groups:
            processes.append(process := subprocess.Popen([sys.executable, "-P", "-c", BUSY]))
            os.sched_setscheduler(process.pid, policy, os.sched_param(0))
            (group / "cgroup.procs").write_text(str(process.pid))
        time.sleep(SETTLE_S)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _traffic(num_slices: int) -> Iterator[Path]:
    """The namespace of a process that sends in it; the namespace ends with it, it with its standard input."""
    with subprocess.Popen(
        [*python(f"{__package__}.traffic"), str(num_slices)],
        cwd="/",
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            process.kill()
            raise ActuatorError("the network namespace for the measurement could not be made (see above)")
        yield Path(f"/proc/{process.pid}/ns/net")
