"""Programs of the testbed: started in a namespace and a cgroup, identified by pid and start time, stopped."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicepilot.configs import ConfigError, FailureError
from slicepilot.configs.backends import Check
from slicepilot.configs.compiled import IN_CLONE, PACKAGE, remedy
from slicepilot.controller.system.processes import start_ticks

from .layout import netns_path

READY_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 2.0
PROGRAMS = ("upf", "smf", "load", "sink", "ue", "edge")


class ProgramError(FailureError):
    """A program of the testbed did not start, answered with an error, or has gone."""


def binary(name: str) -> Path:
    """A program of the user plane: build/bin in a clone, the package's own in an install, or from SLICEPILOT_BIN.

    It will run as root, so its path never depends on the working folder.

    Raises:
        ConfigError: it is not there, or cannot run on this machine; or SLICEPILOT_BIN is no absolute path.
    """
    path = bin_folder() / name
    if reason := obstacle(path):
        raise ConfigError(f"program {str(path)!r} is {reason}")
    return path


def bin_folder() -> Path:
    """Where the programs are looked for; raises ConfigError for a SLICEPILOT_BIN that is no absolute path."""
    named = os.environ.get("SLICEPILOT_BIN")
    if named:
        if not Path(named).is_absolute():
            raise ConfigError(f"SLICEPILOT_BIN = {named!r}: must be an absolute path: its programs run as root")
        return Path(named)
    return PACKAGE / "build" / "bin" if IN_CLONE else PACKAGE / "testbed" / "bin"


def obstacle(path: Path) -> str | None:
    """Why a program cannot run here, and what to do; None if it can."""
    if not path.is_file():
        return f"missing; {remedy('live')}"
    if not os.access(path, os.X_OK):
        return "not executable; use chmod +x on a file system that is not mounted noexec"
    if _machine(path) != _machine(Path("/proc/self/exe")):
        return f"not built for this machine ({platform.machine()}); {remedy('live')}"
    return None


def checks() -> list[Check]:
    """A row of ``slicepilot doctor`` for each program."""
    try:
        folder = bin_folder()
    except ConfigError as error:
        return [Check("SLICEPILOT_BIN", False, os.environ["SLICEPILOT_BIN"], "live", str(error))]
    rows = []
    for name in PROGRAMS:
        reason = obstacle(folder / name)
        rows.append(Check(name, reason is None, (reason or str(folder / name)).partition(";")[0], "live", reason or ""))
    return rows


def _machine(path: Path) -> bytes:
    """Word size, byte order and processor of an ELF file (elf(5): e_ident, e_machine); empty for another."""
    with path.open("rb") as file:
        head = file.read(20)
    return head[4:6] + head[18:20] if head.startswith(b"\x7fELF") else b""


@dataclass(frozen=True)
class ProcessId:
    """Identifies a process, also against a later process with the same pid."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """The identity of a running process; raises ProgramError when it has gone."""
        ticks = start_ticks(pid)
        if ticks is None:
            raise ProgramError(f"process {pid} has gone")
        return cls(pid, ticks)

    @property
    def alive(self) -> bool:
        """Whether that very process still runs."""
        return start_ticks(self.pid) == self.start_ticks

    @property
    def cpu_s(self) -> float:
        """CPU time that its threads have got so far (proc_pid_schedstat(5)); raises OSError when it has gone."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return 1e-9 * sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL after two seconds; returns when it is gone."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.alive:
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while self.alive and time.monotonic() < deadline:
                time.sleep(0.005)
        with contextlib.suppress(ChildProcessError):  # somebody else's child, or reaped before
            os.waitpid(self.pid, 0)


@dataclass(frozen=True)
class Program:
    """A running program; what it prints (JSON lines) and logs is in files, so that it outlives its starter."""

    name: str
    process: ProcessId
    output: Path
    log: Path

    def wait_ready(self) -> dict[str, Any]:
        """Its first line.

        Raises:
            ProgramError: it ended, or said nothing in time; with what it logged.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not (lines := self.lines()):
            if not self.process.alive:
                raise ProgramError(f"{self.name} ended at once: {self._last_log()}")
            if time.monotonic() > deadline:
                raise ProgramError(f"{self.name} said nothing for {READY_TIMEOUT_S:g} s: {self._last_log()}")
            time.sleep(0.002)
        return lines[0]

    def lines(self) -> list[dict[str, Any]]:
        """All it has printed so far."""
        whole = self.output.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def stop(self) -> dict[str, Any]:
        """Stop it; the last thing it printed, empty if nothing, or if its files went with the testbed."""
        self.process.stop()
        with contextlib.suppress(FileNotFoundError):
            if lines := self.lines():
                return lines[-1]
        return {}

    def _last_log(self) -> str:
        with contextlib.suppress(OSError, IndexError):
            return self.log.read_text(errors="replace").splitlines()[-1]
        return "it logged nothing"


def spawn(
    name: str,
    namespace: str,
    arguments: Sequence[str | Path],
    folder: Path,
    *,
    stdin: int | None = None,
    stdout: int | None = None,
    cgroup: Path | None = None,
) -> Program:
    """Start a program in a namespace and, from its first instruction, in a cgroup.

    nsenter(1) replaces itself by the program, so the pid is the program's. A session of its own keeps a Ctrl-C on the
    terminal from reaching it: its starter decides when it ends.

    Args:
        name: of its files, ``folder/NAME.out`` and ``folder/NAME.log``.
        namespace: a testbed's.
        arguments: program and its arguments.
        folder: where its files go.
        stdin, stdout: descriptors; /dev/null and the file without them.
        cgroup: it starts in this group.

    Raises:
        ProgramError: it ended at once.
        OSError: it could not be started.
    """
    output, log = folder / f"{name}.out", folder / f"{name}.log"
    output.write_bytes(b"")
    command = ["nsenter", f"--net={netns_path(namespace)}", "--", *map(str, arguments)]
    if cgroup is not None:
        # The shell joins the cgroup, then becomes nsenter.
        command = ["sh", "-c", 'echo 0 > "$0"/cgroup.procs && exec "$@"', str(cgroup), *command]
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0) if stdin is None else (os.POSIX_SPAWN_DUP2, stdin, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(output), os.O_WRONLY | os.O_APPEND, 0)
        if stdout is None
        else (os.POSIX_SPAWN_DUP2, stdout, 1),
        (os.POSIX_SPAWN_OPEN, 2, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
    ]
    pid = os.posix_spawnp(command[0], command, os.environ, file_actions=actions, setsid=True)
    return Program(name, ProcessId.of(pid), output, log)
