"""A node to measure the loop on: cgroups, packet points and busy processes of its own, gone when it is closed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from slicepilot.controller.actuators.node import SliceTargets
from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.own_programs import environment, python
from slicepilot.controller.telemetry.points import NetPoint, SlicePoints
from slicepilot.env.slices import SliceSet

EDGE = "edge"  # a group without knobs, so that the CPUs stay saturated whatever the slices are limited to
LIFETIME_S = 600  # nothing outlives this, whatever happens to us
REMOVE_TIMEOUT_S = 2.0
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
        self._busy: list[subprocess.Popen[bytes]] = []
        self._traffic: subprocess.Popen[str] | None = None
        hierarchy = CpuHierarchy.find()
        self._parent = hierarchy.root / f"{PREFIX}{os.getpid()}"
        self.cgroups = [self._parent / name for name in slices.names]
        try:
            remove_stale(hierarchy)
            self._make_groups(hierarchy)
            self._traffic = _start_traffic(len(slices))
        except BaseException:
            self.close()
            raise

    @property
    def points(self) -> list[SlicePoints]:
        """Where the probe measures."""
        assert self._traffic is not None
        netns = Path(f"/proc/{self._traffic.pid}/ns/net")
        exit_point = NetPoint(netns, "n6")
        return [
            SlicePoints(name, n3=NetPoint(netns, f"n3-{index}"), n6=exit_point, cgroup=group)
            for index, (name, group) in enumerate(zip(self._slices.names, self.cgroups, strict=True))
        ]

    @property
    def targets(self) -> list[SliceTargets]:
        """Where the knobs are; the egress rate is set on each slice's N3 device instead of N6."""
        assert self._traffic is not None
        netns = Path(f"/proc/{self._traffic.pid}/ns/net")
        return [
            SliceTargets(name, group, f"n3-{index}", netns)
            for index, (name, group) in enumerate(zip(self._slices.names, self.cgroups, strict=True))
        ]

    def saturate(self) -> None:
        """A busy process in every slice's group, and one for each CPU beside them."""
        for group in [*self.cgroups, *[self._parent / EDGE] * (os.cpu_count() or 1)]:
            process = subprocess.Popen([sys.executable, "-P", "-c", BUSY])
            self._busy.append(process)
            (group / "cgroup.procs").write_text(str(process.pid))
        time.sleep(0.5)  # for interpreters to start

    def close(self) -> None:
        """End what was started, remove what was made; more than once does nothing."""
        for process in self._busy:
            process.kill()
            process.wait()
        self._busy.clear()
        if self._traffic is not None:
            assert self._traffic.stdin is not None
            assert self._traffic.stdout is not None
            self._traffic.stdin.close()
            self._traffic.wait()
            self._traffic.stdout.close()
            self._traffic = None
        for path in (*self.cgroups, self._parent / EDGE, self._parent):
            remove_group(path)

    def __enter__(self) -> BenchNode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_groups(self, hierarchy: CpuHierarchy) -> None:
        try:
            self._parent.mkdir()
            if hierarchy.version == 2:
                (self._parent / "cgroup.subtree_control").write_text("+cpu")
            for path in (*self.cgroups, self._parent / EDGE):
                path.mkdir()
        except OSError as error:
            raise ActuatorError.of(f"{error.filename}: make cgroups", error) from error


def _start_traffic(num_slices: int) -> subprocess.Popen[str]:
    """The process that holds the namespace and sends; the namespace ends with it, it with its standard input."""
    process = subprocess.Popen(
        [*python(f"{__package__}.traffic"), str(num_slices)],
        cwd="/",
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        process.kill()
        process.wait()
        raise ActuatorError("the network namespace for the measurement could not be made (see above)")
    return process


def remove_stale(hierarchy: CpuHierarchy) -> None:
    """Remove what a process that was killed has left: its groups, and the busy processes that it started in them."""
    for parent in hierarchy.root.glob(f"{PREFIX}*"):
        if Path(f"/proc/{parent.name.removeprefix(PREFIX)}").exists():
            continue
        for path in (*filter(Path.is_dir, parent.iterdir()), parent):
            for pid in (path / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            remove_group(path)


def remove_group(path: Path) -> None:
    """Remove a group once nothing runs in it any more; raises ActuatorError where something does."""
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    while path.is_dir():
        with contextlib.suppress(OSError):  # EBUSY until a process that was killed has left
            path.rmdir()
            return
        if time.monotonic() > deadline:
            raise ActuatorError(f"{path}: cannot be removed: something runs in it")
        time.sleep(0.01)
