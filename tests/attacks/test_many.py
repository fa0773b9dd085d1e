"""Huge numbers of cgroups, processes and arguments, by a user with a subtree of cgroups."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.configs import ConfigError
from slicepilot.controller.system import cgroup_paths
from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.own_groups import PREFIX, OwnGroup, group_back
from slicepilot.controller.telemetry.discover import by_container
from slicepilot.controller.watchdog.restore import group_of
from slicepilot.node.find.processes import MOST_ARGUMENT_BYTES, Process, ancestors, descendants, eldest, look_at

from .unprivileged import NOBODY

as_root = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/sys/fs/cgroup", os.W_OK), reason="needs root, and cgroups to make"
)
DEEPER_THAN_PYTHON_CALLS = sys.getrecursionlimit() + 100
MOST_S = 2.0
SAYS = """
import ctypes, mmap, os, struct, sys, time
size = int(sys.argv[1])
os.setgroups([]), os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
start = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, -1, 0)  # MAP_NORESERVE
stat = open("/proc/self/stat", "rb").read().rpartition(b")")[2].split()
code, data, envs = ([int(stat[field - 3]) for field in fields] for fields in ((26, 27), (45, 46), (50, 51)))
top, stack = int(stat[47 - 3]), int(stat[28 - 3])
values = (*code, *data, top, libc.sbrk(0), stack, start, start + size, *envs, 0, 0, -1)
layout = ctypes.create_string_buffer(struct.pack("=12QIi", *values))
libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
print(libc.prctl(35, 14, ctypes.addressof(layout), len(layout) - 1, 0), flush=True)  # PR_SET_MM, PR_SET_MM_MAP
time.sleep(60)
"""


@pytest.fixture(name="subtree")
def _subtree() -> Iterator[Path]:
    """A group that is somebody's, with all that is made below it taken away in the end."""
    folder = CpuHierarchy.find().root / f"delegated-{os.getpid()}"
    folder.mkdir()
    os.chown(folder, NOBODY, -1)
    yield folder
    remove(folder)


def remove(folder: Path) -> None:
    for group in reversed([folder, *(group for group, _ in cgroup_paths.below(folder))]):
        group.rmdir()


def nest(folder: Path, depth: int = DEEPER_THAN_PYTHON_CALLS) -> Path:
    for _ in range(depth):
        folder /= "x"
        folder.mkdir()
    return folder


@as_root
def test_a_group_that_has_gone_is_looked_for_past_a_subtree_of_any_depth(subtree: Path) -> None:
    nest(subtree)
    started_s = time.monotonic()
    assert group_of(subtree.parent / "gone", 1) is None
    assert group_of(subtree / "x" / "gone", 1) is None
    assert time.monotonic() - started_s < MOST_S


@as_root
def test_groups_below_a_slices_are_all_seen_however_deep(subtree: Path) -> None:
    nest(subtree)
    assert len(set(cgroup_paths.ids(subtree))) == DEEPER_THAN_PYTHON_CALLS + 1
    (subtree / "y").mkdir()
    assert (subtree / "y").stat().st_ino in set(cgroup_paths.ids(subtree))
    assert sum(1 for _ in cgroup_paths.below(subtree, 1)) == 2


@as_root
def test_a_group_of_ours_is_removed_with_whatever_was_made_in_it() -> None:
    root = CpuHierarchy.find().root
    own = root / f"{PREFIX}many-{os.getpid()}"
    own.mkdir()
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            (nest(own) / "cgroup.procs").write_text(str(process.pid))
            group_back(OwnGroup("s", str(own), str(root)))
            assert not own.exists()
            assert cgroup_paths.of_process(process.pid) is None
        finally:
            process.kill()
            process.wait()
            if own.exists():
                remove(own)


@as_root
def test_a_command_line_is_as_long_as_a_process_says() -> None:
    size = 1 << 30
    command = [sys.executable, "-S", "-c", SAYS, str(size), str(NOBODY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"0\n":
                pytest.skip("this kernel lets nobody say so (CONFIG_CHECKPOINT_RESTORE)")
            before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            item = look_at(process.pid)
            assert item is not None
            assert len("".join(item.arguments)) <= MOST_ARGUMENT_BYTES
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < size >> 20
        finally:
            process.kill()


def test_a_command_line_may_be_long() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "x" * MOST_ARGUMENT_BYTES]) as process:
        try:
            while (item := look_at(process.pid)) is None or "-c" not in item.arguments:
                time.sleep(0.01)  # until it is another program than the test
            assert len("".join(item.arguments)) < MOST_ARGUMENT_BYTES
        finally:
            process.kill()


@as_root
def test_a_users_group_is_no_container(subtree: Path) -> None:
    identity = "a" * 60 + "beef"
    with subprocess.Popen(["sleep", "60"], user=NOBODY) as process:
        try:
            (subtree / f"docker-{identity}.scope").mkdir()
            (subtree / f"docker-{identity}.scope" / "cgroup.procs").write_text(str(process.pid))
            with pytest.raises(ConfigError, match="no process in such a cgroup"):
                by_container(identity[:12])
        finally:
            process.kill()
            process.wait()
            time.sleep(0.1)  # until its group is empty


def relative(pid: int, parent: int) -> Process:
    return Process(pid, parent, 1, "x", 0, "x", ("x",), (("cpu", "/"),), None)


def test_families_are_looked_through_in_time_that_grows_with_them() -> None:
    everybody = {pid: relative(pid, pid - 1) for pid in range(2, 20_002)}
    started_s = time.thread_time()
    assert [result.pid for result in eldest(everybody.values(), everybody)] == [2]
    assert [result.pid for result in eldest([everybody[20_001], everybody[10_000]], everybody)] == [10_000]
    assert len(list(ancestors(everybody[20_001], everybody))) == 19_999
    assert len(descendants(2, everybody)) == 19_999
    assert time.thread_time() - started_s < MOST_S


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), max_size=6), st.sets(st.integers(1, 6)))
def test_eldest_are_those_that_descend_from_no_other(pairs: list[tuple[int, int]], chosen: set[int]) -> None:
    """Also where parents are somebody's children: a picture is taken of what changes meanwhile."""
    everybody = {pid: relative(pid, parent) for pid, parent in pairs}
    some = [everybody[pid] for pid in sorted(chosen & everybody.keys())]
    numbers = {result.pid for result in some}
    reported = [result.pid for result in eldest(some, everybody)]
    assert reported == [result.pid for result in some if not numbers & set(ancestors(result, everybody))]
