"""Processes are moved to a group that is made for them and back: all of them, to the right group, and safely."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.own_groups import (
    PREFIX,
    MovedThread,
    OwnGroup,
    check_safe,
    group_back,
    group_of,
    make,
    move,
    thread_back,
)
from slicepilot.controller.system.processes import start_ticks
from slicepilot.node.authority.cpu_group import group_path

from .test_own_cgroup import ROOT, group, sleeper

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
print(child.pid, flush=True)
sys.stdin.readline()
late = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
print(late.pid, flush=True)
time.sleep(300)
"""


def test_all_that_is_in_a_group_is_put_back(tmp_path: Path) -> None:
    """Also what a process has started since, in groups below as well; and who has ended needs nothing."""
    with group(f"sp-home-{os.getpid()}") as home, sleeper(sys.executable, "-S", "-c", PARENT, into=home) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        early = int(parent.stdout.readline())
        own = OwnGroup("a", str(home / f"{PREFIX}{os.getpid()}"), str(home))
        make(Path(own.path))
        move(parent.pid, start_ticks(parent.pid) or 0, Path(own.path))
        parent.stdin.write("\n")
        parent.stdin.flush()
        late = int(parent.stdout.readline())
        below = Path(own.path) / "theirs"
        below.mkdir()
        (below / "cgroup.procs").write_text(str(early))
        assert group_of(late) == Path(own.path)
        assert "3 processes back" in group_back(own)
        assert {group_of(pid) for pid in (parent.pid, early, late)} == {home}
        assert not Path(own.path).exists()
        with pytest.raises(FileNotFoundError):
            group_back(own)
        for pid in (early, late):
            os.kill(pid, signal.SIGKILL)


def test_where_the_group_has_gone_it_is_the_nearest_above() -> None:
    above, ours = f"sp-above-{os.getpid()}", f"{PREFIX}test-{os.getpid()}"
    with group(above, "gone") as gone, group(ours) as own, sleeper(into=own) as process:
        gone.rmdir()
        reported = group_back(OwnGroup("a", str(own), str(gone)))
        assert reported == f"1 processes back in {gone.parent}, since {gone} has gone, {own} removed"
        assert group_of(process.pid) == gone.parent
        other = gone.with_name("other")
        other.mkdir()
        try:
            (other / "cgroup.procs").write_text(str(process.pid))
            thread = MovedThread("a", process.pid, start_ticks(process.pid) or 0, str(gone), str(other))
            assert f"since {gone} has gone" in thread_back(thread)
            assert group_of(process.pid) == gone.parent
            assert thread_back(thread) == "", "somebody has moved it on"
        finally:
            (ROOT / "cgroup.procs").write_text(str(process.pid))
            other.rmdir()


def test_a_number_that_another_process_has_is_not_moved() -> None:
    with group(f"sp-reuse-{os.getpid()}") as there, sleeper(into=ROOT) as process:
        with pytest.raises(ActuatorError, match="has ended") as caught:
            move(process.pid, (start_ticks(process.pid) or 0) - 1, there)
        assert caught.value.vanished
        assert group_of(process.pid) == ROOT
        process.kill()
        process.wait()
        with pytest.raises(ActuatorError, match="has ended"):
            move(process.pid, 1, there)


def test_groups_are_made_where_root_alone_writes(tmp_path: Path) -> None:
    with group(f"sp-safe-{os.getpid()}", "below") as below:
        check_safe(below)
        os.chown(below.parent, 65534, -1)
        with pytest.raises(ActuatorError, match="user 65534 can write to it"):
            group_path("a", below)
        os.chown(below.parent, 0, -1)
        below.chmod(0o777)
        with pytest.raises(ActuatorError, match="expected groups that only root writes to"):
            make(below / f"{PREFIX}a")
        (tmp_path / "link").symlink_to(below)
        for outside in (tmp_path / "link", below / ".." / "below", Path("/tmp")):
            with pytest.raises(ActuatorError, match="not in the hierarchy of the CPU controller"):
                check_safe(outside)
        with pytest.raises(ActuatorError, match="not called as a group of ours"):
            group_back(OwnGroup("a", str(below), str(ROOT)))


def unified_group(path: Path, delegates: str = "", **files: str) -> Path:
    """A group of version 2 by what its files look like."""
    path.mkdir(parents=True, exist_ok=True)
    contents = {"cgroup.controllers": "cpu memory", "cgroup.subtree_control": delegates, "cgroup.procs": ""}
    for name, content in (contents | files).items():
        (path / name.replace("__", ".")).write_text(content)
    return path


def test_in_version_2_the_group_is_a_sibling_unless_a_limit_would_be_escaped(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    root = unified_group(tmp_path / "unified", "cpu memory")
    hierarchy = CpuHierarchy(2, root)
    assert group_path("n-a", None, hierarchy) == root / f"{PREFIX}n-a"
    middle = unified_group(root / "upfs", "cpu", cpu__max="max 100000")
    shared = unified_group(middle / "shared", cpu__max="max 100000", memory__max="max", pids__max="max")
    assert group_path("n-a", shared, hierarchy) == middle / f"{PREFIX}n-a"
    for name, value in (("memory.max", "1048576"), ("cpu.max", "50000 100000"), ("cpuset.cpus", "0")):
        before = (shared / name).read_text() if (shared / name).exists() else ""
        (shared / name).write_text(value)
        with pytest.raises(ActuatorError, match=f"{name} would not bind it any more"):
            group_path("n-a", shared, hierarchy)
        (shared / name).write_text(before)
    unit = unified_group(middle / "upf.service", cpu__max="max 100000")
    with pytest.raises(ActuatorError, match="systemd would lose sight of it"):
        group_path("n-a", unit, hierarchy)
    (root / "cgroup.subtree_control").write_text("memory")
    with pytest.raises(ActuatorError, match="does not delegate the CPU controller; echo \\+cpu > "):
        group_path("n-a", None, hierarchy)
