"""Real cgroups for the tests of knobs and loop, and busy processes in them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.watchdog.journal import journal_path

BUSY = "import signal; signal.alarm(60)\nwhile True: pass"


@pytest.fixture
def hierarchy() -> CpuHierarchy:
    if os.geteuid() != 0:
        pytest.skip("needs root: cgroups")
    try:
        return CpuHierarchy.find()
    except ActuatorError as error:
        pytest.skip(str(error))


@pytest.fixture
def groups(hierarchy: CpuHierarchy, tmp_path: Path) -> Iterator[list[Path]]:
    """Five empty cgroups; afterwards there is no journal of a controller whose state folder is ``tmp_path`` either."""
    parent = hierarchy.root / f"slicepilot-test-{os.getpid()}-{threading.get_ident():x}"
    parent.mkdir()
    if hierarchy.version == 2:
        (parent / "cgroup.subtree_control").write_text("+cpu")
    paths = [parent / f"slice{k}" for k in range(5)]
    for path in paths:
        path.mkdir()
    yield paths
    for path in [*paths, parent]:
        remove_group(path)
    journal_path(tmp_path).unlink(missing_ok=True)


def remove_group(path: Path) -> None:
    for _ in range(100):
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # a process that was killed has not left yet
            time.sleep(0.01)
        else:
            return


@contextlib.contextmanager
def busy_process(group: Path | None = None, code: str = BUSY) -> Iterator[subprocess.Popen[bytes]]:
    """A process that wants a whole CPU, in a cgroup if there is one; ends with the ``with`` block.

    It sleeps while it is moved: the CPU time of one that runs is counted only from the next switch of its CPU, which
    may be half a second away where nothing else wants that CPU.
    """
    command = ["/bin/sh", "-c", 'read -r _; exec "$0" -c "$1"', sys.executable, code]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    try:
        if group is not None:
            (group / "cgroup.procs").write_text(str(process.pid))
        process.stdin.close()
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
