"""A machine within this machine: namespaces of its own, systemd as their first process, container runtimes in it.

What an operator would type runs in here as it is: units and daemons have their usual names and paths, and what they do
to the machine stays inside. The kernel, and with it the CPU's scheduler and cgroups, are this machine's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.testbed.lifecycle.processes import bin_folder

SCRIPT = Path(__file__).with_name("machine.sh")
TOOLS = Path(__file__).parents[2] / "build" / "tools" / "usr"
SYSTEMD = Path("/usr/lib/systemd/systemd")
BOOT_S, GONE_S = 20.0, 5.0


class MachineError(Exception):
    """It cannot be had here: what is missing, or what systemd said."""


class Machine:
    """Boots a machine; its cgroups go by a name that is this process's own.

    Args:
        folder: empty, not on overlayfs: for what the machine writes.

    Raises:
        MachineError: this machine cannot do that.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, f"spm{os.getpid()}"
        if os.geteuid() != 0 or not SYSTEMD.exists():
            raise MachineError(f"needs root and {SYSTEMD}")
        self._started: list[subprocess.Popen[str]] = []
        command = ["bash", str(SCRIPT), "boot", str(folder), self.name]
        with (folder / "log").open("wb") as log:
            self._unshare = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self.pid = self._booted()
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> str:
        """Where programs are looked for in it."""
        search = [Path(sys.executable).parent, TOOLS / "sbin", TOOLS / "bin"]
        usual = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        return os.pathsep.join([*map(str, search), *usual])

    @property
    def root(self) -> Path:
        """Its files, as this machine sees them."""
        return Path(f"/proc/{self.pid}/root")

    def group_of(self, pid: int) -> Path:
        """The cgroup of the CPU controller that a process is in, by its number in the machine (cgroups(7))."""
        hierarchy = CpuHierarchy.find()
        for line in (self.root / "proc" / str(pid) / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "cpu" in controllers.split(",") or (hierarchy.version == 2 and not controllers):
                return hierarchy.root / path.lstrip("/")
        raise AssertionError(f"{pid} is in no group of {hierarchy}")

    def write(self, path: str, text: str) -> None:
        """A file in it, by its absolute path there."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def start(
        self, *command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, **pipes: object
    ) -> subprocess.Popen[str]:
        """A process in it; its parent, which is what is returned, is not in there (nsenter(1))."""
        known = {"PATH": self.path, "HOME": "/root", "LANG": "C.UTF-8", "SLICEPILOT_BIN": str(bin_folder())}
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--net", "--ipc", "--uts"]
        there = ["sh", "-c", 'cd "$0" && exec "$@"', str(cwd or self.folder)]
        process = subprocess.Popen(
            [*enter, *there, *command],
            env=known | dict(env or {}),
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            **pipes,  # type: ignore[call-overload]
        )
        self._started.append(process)
        return process

    def run(
        self,
        *command: str,
        code: int | None = 0,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> str:
        """Run a command to its end in it; returns what it printed. ``code``: that it has to end with, None for any."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = self.start(*command, cwd=cwd, env=env, **pipes)
        out, error = process.communicate(timeout=timeout_s)
        assert code is None or process.returncode == code, f"{' '.join(command)}: {process.returncode}: {out}{error}"
        return out

    def close(self) -> None:
        """End all that runs in it, and remove its cgroups; its mounts go with it."""
        for child in children(self._unshare.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, 9)
        with contextlib.suppress(ProcessLookupError):
            self._unshare.kill()
        for process in (self._unshare, *self._started):  # all have ended with it; a test that failed waited for none
            process.wait()
        deadline = time.monotonic() + GONE_S
        while left := list(self._groups()):
            for group in left:
                with contextlib.suppress(OSError):
                    group.rmdir()
            assert time.monotonic() < deadline, f"cgroups that cannot be removed: {left}"
            time.sleep(0.02)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _groups(self) -> Iterator[Path]:
        """Its cgroups in all hierarchies, those below first."""
        for line in Path("/proc/mounts").read_text().splitlines():
            _, point, kind, *_ = line.split(" ")
            if kind in {"cgroup", "cgroup2"}:
                for folder, *_ in os.walk(Path(point) / self.name, topdown=False):
                    yield Path(folder)

    def _booted(self) -> int:
        """Pid of systemd, once it answers."""
        deadline = time.monotonic() + BOOT_S
        while time.monotonic() < deadline and self._unshare.poll() is None:
            for child in children(self._unshare.pid):
                self.pid = child
                with contextlib.suppress(OSError, AssertionError):
                    if Path(f"/proc/{child}/exe").readlink() == SYSTEMD:
                        self.run("systemctl", "is-active", "multi-user.target")
                        return child
            time.sleep(0.05)
        raise MachineError(f"systemd does not run in namespaces here: {(self.folder / 'log').read_text().strip()}")


@contextlib.contextmanager
def booted(folder: Path) -> Iterator[Machine]:
    """A machine for a fixture, which skips its tests where that, or what it puts into it, cannot be had."""
    folder.chmod(0o755)
    machine = None
    try:
        machine = Machine(folder)
        yield machine
    except MachineError as error:
        pytest.skip(str(error))
    finally:
        if machine is not None:
            machine.close()


def pss_mib(pid: int) -> float:
    """A process's part of memory: pages that several share count in parts (proc_pid_smaps(5), Pss)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def children(pid: int) -> list[int]:
    """Of a process that has one thread; none of one that has ended."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
