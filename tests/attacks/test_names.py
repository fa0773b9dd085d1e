"""Names that others have chosen: no text, or with what Python takes for the end of a line and the kernel does not.

A local user names processes, the groups of a delegated subtree, what is mounted by FUSE, and in a user namespace
interfaces.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from slicepilot.controller.system.cgroup import CpuHierarchy, cgroup_mounts
from slicepilot.controller.system.cgroup_paths import of_process
from slicepilot.controller.system.processes import process_of, start_ticks
from slicepilot.node.find.discover import discover
from slicepilot.node.find.draft import draft
from slicepilot.node.find.locate import Finder
from slicepilot.node.find.processes import look_at, snapshot
from tests.node.test_discover import listener
from tests.node.test_foreign import slicepilot

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/sys/fs/cgroup", os.W_OK), reason="needs root, and cgroups to make"
)

LINE_ENDS = b"\x0b\x0c\x1c\x1d\x1e\xc2\x85\xe2\x80\xa8"  # what str.splitlines knows beside those of files
PR_SET_NAME = 15
COMM = b"\xff\x0cTgid:\t1"
PORTS = (2152, 8805)
PYTHON = Path(sys.executable).resolve()


@contextlib.contextmanager
def grouped(pid: int, *path: bytes) -> Iterator[Path]:
    """The process is in a group of that path, below a group that is its user's."""
    root = CpuHierarchy.find().root
    folders = [root / f"delegated-{os.getpid()}"]
    for part in path:
        folders.append(folders[-1] / os.fsdecode(part))
    with contextlib.ExitStack() as undo:
        for folder in folders:
            folder.mkdir()
            undo.callback(folder.rmdir)
        os.chown(folders[0], 65534, -1)
        (folders[-1] / "cgroup.procs").write_text(str(pid))
        undo.callback((root / "cgroup.procs").write_text, str(pid))
        yield folders[-1]


@pytest.mark.parametrize("end", [bytes([end]) for end in LINE_ENDS[:5]] + [b"\xc2\x85", b"\xe2\x80\xa8"])
def test_a_process_is_itself_whatever_it_is_called(end: bytes) -> None:
    with listener(PYTHON, *PORTS, name=end + b"Tgid:\t1") as pid:
        assert process_of(pid) == pid
        item = look_at(pid)
        assert item is not None
        assert (item.pid, item.parent, item.start_ticks) == (pid, os.getpid(), start_ticks(pid))


@pytest.mark.parametrize("end", [b"\xff", b"\x0c", b"\xe2\x80\xa8"])
def test_a_group_is_where_it_is_whatever_it_is_called(end: bytes) -> None:
    """Else a user's process were in somebody's container, whose folder is root's."""
    forged = CpuHierarchy.find().root / "kubepods"
    with listener(PYTHON, *PORTS) as pid, grouped(pid, b"a" + end + b"1:cpu,cpuacct:", b"kubepods") as group:
        assert of_process(pid) == group
        assert of_process(pid) != forged
        item = look_at(pid)
        assert item is not None
        assert not item.cpu_group.startswith("/kubepods")
        assert item.group_names <= {f"delegated-{os.getpid()}"} | own_groups()


def own_groups() -> set[str]:
    """Names of those that this process is in, and so its children are, where nothing else is said."""
    return {part for line in Path("/proc/self/cgroup").read_text().split("\n") for part in line.split("/")}


def test_mounts_of_any_name_are_none_of_cgroups(tmp_path: Path) -> None:
    real = Path("/proc/mounts").read_bytes()
    evil = b"x /tmp/\xff\x0ccgroup /evil cgroup2 rw\xe2\x80\xa8x fuse rw 0 0\n"
    (tmp_path / "mounts").write_bytes(evil + real + evil)
    assert cgroup_mounts(tmp_path / "mounts") == cgroup_mounts()


def test_finding_goes_on_and_what_is_shown_is_text(tmp_path: Path) -> None:
    program = tmp_path / os.fsdecode(b"upf\xff\x1b[2J\xc2\x85")
    shutil.copy(PYTHON, program)
    with listener(program, *PORTS, name=COMM) as pid, grouped(pid, b"\xff\x0c\x1b[2J"):
        assert pid in snapshot()
        Finder()
        [result] = [item for item in discover() if item.process.pid == pid]
        text = draft("edge", [result])
        assert set(yaml.safe_load(text)) == {"name", "slices"}
        assert text.encode().isascii()
        answer = json.loads(slicepilot("node", "discover", "--json").stdout)
        [reported] = [item for item in answer if item["pid"] == pid]
        assert all(
            value is None or value.isprintable() for value in reported.values() if not isinstance(value, int | list)
        )
        shown = slicepilot("node", "discover").stdout
        assert str(pid) in shown
        assert "\x1b" not in shown
        slicepilot("restore")
