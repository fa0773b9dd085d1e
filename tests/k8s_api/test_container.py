"""What an agent in a container does first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slicepilot.cluster.agent import container
from slicepilot.cluster.agent.lock import AgentLock
from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.own_programs import ROOT, check_environment

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
INSIDE = """
import sys
from pathlib import Path
from slicepilot.cluster.agent.container import enter_cgroup_namespace
groups = lambda: [line for line in Path(f"/proc/{sys.argv[1]}/cgroup").read_text().splitlines()]
print(groups() == sys.argv[2].split("\\n"), enter_cgroup_namespace(Path(f"/proc/{sys.argv[1]}/ns/cgroup")),
      groups() == sys.argv[2].split("\\n"), enter_cgroup_namespace(Path(f"/proc/{sys.argv[1]}/ns/cgroup")))
"""


@pytest.fixture(name="group")
def _group() -> Path:
    """A group of our own in some hierarchy, as a container has."""
    group = CpuHierarchy.find().root / f"spc{os.getpid()}"
    group.mkdir()
    return group


@root
def test_from_a_cgroup_namespace_of_its_own_it_enters_the_nodes(group: Path) -> None:
    """In its own, groups of other processes are named relative to its group, which is what a container on cgroup
    version 2 sees."""
    unshare = shutil.which("unshare")
    assert unshare is not None
    seen = Path("/proc/self/cgroup").read_text().rstrip("\n")
    python = [sys.executable, "-c", INSIDE, str(os.getpid()), seen]
    within = f'echo $$ > {group}/cgroup.procs && exec {unshare} --cgroup "$@"'
    try:
        done = subprocess.run(
            ["sh", "-c", within, "sh", *python],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
    finally:
        group.rmdir()
    assert done.stdout.split() == ["False", "True", "True", "False"], done.stderr


def test_a_folder_that_the_kubelet_made_is_shut_and_no_other(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    made.chmod(0o755)
    container.close_to_others(made)
    assert made.stat().st_mode & 0o777 == 0o700
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    container.close_to_others(shared)
    assert shared.stat().st_mode & 0o777 == 0o777, "others may have locks in there already"
    link = tmp_path / "link"
    link.symlink_to(shared)
    made.chmod(0o755)
    link.unlink()
    link.symlink_to(made)
    container.close_to_others(link)
    assert made.stat().st_mode & 0o777 == 0o755
    container.close_to_others(tmp_path / "not-there")


def test_what_is_compiled_is_kept_by_version_where_the_image_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(container.CACHE, raising=False)
    container.keep_compiled(tmp_path)
    assert container.CACHE not in os.environ, "beside the source, as ever"
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setenv(container.CACHE, "")
    older = tmp_path / container.COMPILED / "0123456789abcdef"
    older.mkdir(parents=True)
    (older / "x.nbi").touch()
    container.keep_compiled(tmp_path)
    folder = Path(os.environ[container.CACHE])
    assert folder.parent == tmp_path / container.COMPILED
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not older.exists()
    check_environment()


def test_ready_is_a_file_that_a_killed_agent_does_not_leave(tmp_path: Path) -> None:
    lock = AgentLock(tmp_path / "agent")
    assert lock.acquire()
    ready = tmp_path / "agent" / "ready"
    assert not ready.exists()
    lock.mark_ready()
    assert ready.exists()
    lock.close()  # as the kernel does it
    second = AgentLock(tmp_path / "agent")
    assert second.acquire()
    assert not ready.exists()
    second.mark_ready()
    second.mark_ready(False)
    assert not ready.exists()
    second.close()
