"""CPU time and run-queue delay of cgroups, against what the kernel's own accounts say."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicepilot.controller.system.bpf.errors import ProbeError
from slicepilot.controller.telemetry.points import NetPoint, SlicePoints, Traffic
from slicepilot.controller.telemetry.sched import MOST_GROUPS
from slicepilot.controller.telemetry.source import KernelSource
from tests.controller.conftest import busy_process

pytestmark = pytest.mark.realtime


@contextlib.contextmanager
def measuring(home: Any, groups: list[Path | None]) -> Iterator[KernelSource]:
    points = [
        SlicePoints(
            f"s{i}",
            NetPoint(home.path, "n3"),
            None,
            NetPoint(home.path, "n6"),
            cgroup=group,
            traffic=Traffic(teids=(i + 1,)),
        )
        for i, group in enumerate(groups)
    ]
    with KernelSource(points) as source:
        yield source


def used_ns(pid: int) -> int:
    """CPU time of a process so far, by its own clock."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def test_cpu_use_is_what_the_kernel_charges(lone: Any, groups: list[Path]) -> None:
    with measuring(lone, [groups[0], groups[1]]) as source, busy_process(groups[0]) as busy:
        time.sleep(0.2)
        source.measure()
        begun, used = time.monotonic(), used_ns(busy.pid)
        total = 0.0
        for _ in range(20):
            time.sleep(0.1)
            telemetry = source.measure()
            measured = time.monotonic()
            total += 1e6 * float(telemetry.cpu_use_mcpu[0, 0]) * (measured - begun)
            begun = measured
            assert telemetry.cpu_use_mcpu[1, 0] == 0
        charged = used_ns(busy.pid) - used
    assert charged > 5e8
    assert total == pytest.approx(charged, rel=0.05)


def test_groups_below_a_slices_belong_to_it(lone: Any, groups: list[Path]) -> None:
    (groups[0] / "old").mkdir()
    try:
        with measuring(lone, [groups[0]]) as source:
            (groups[0] / "new").mkdir()
            assert source.check() == []
            for name in ("old", "new"):
                with busy_process(groups[0] / name):
                    time.sleep(0.1)
                    source.measure()
                    time.sleep(0.3)
                    assert source.measure().cpu_use_mcpu[0, 0] > 200
    finally:
        for name in ("old", "new"):
            with contextlib.suppress(OSError):
                time.sleep(0.05)
                (groups[0] / name).rmdir()


def test_a_slice_with_more_groups_than_are_looked_at_is_reported_and_the_others_are_measured(
    lone: Any, groups: list[Path]
) -> None:
    made = [groups[0] / f"g{number}" for number in range(MOST_GROUPS + 10)]
    try:
        for group in made[:-10]:
            group.mkdir()
        with measuring(lone, [groups[0], groups[1]]) as source:  # which starts all the same
            for group in made[-10:]:
                group.mkdir()
            [report] = source.check()
            assert report.startswith(f"s0: {groups[0]}: more than {MOST_GROUPS} groups")
            with busy_process(groups[1]):
                time.sleep(0.1)
                source.measure()
                time.sleep(0.3)
                assert source.measure().cpu_use_mcpu[1, 0] > 200
    finally:
        for group in made:
            with contextlib.suppress(FileNotFoundError):
                group.rmdir()


def test_tasks_that_share_a_cpu_wait(lone: Any, groups: list[Path]) -> None:
    with (
        measuring(lone, [groups[0], groups[1]]) as source,
        busy_process(groups[0]) as item,
        busy_process(groups[1]) as other,
    ):
        for process in (item, other):
            os.sched_setaffinity(process.pid, {0})
        time.sleep(0.2)
        source.measure()
        waited = [int(Path(f"/proc/{p.pid}/schedstat").read_text().split()[1]) for p in (item, other)]
        time.sleep(1.0)
        telemetry = source.measure()
        now = [int(Path(f"/proc/{p.pid}/schedstat").read_text().split()[1]) for p in (item, other)]
        records = source.sched.slices
        for index in (0, 1):
            assert telemetry.runqueue_delay_us[index, 0] > 500
            # What the kernel says each task waited in that second, as far as waits have ended.
            ended_ns = int(records[index]["wait_ns"])
            assert ended_ns >= 0.7 * (now[index] - waited[index])
            assert records[index]["wait"].sum() == records[index]["waits"]


def test_a_group_that_is_not_there(lone: Any, groups: list[Path]) -> None:
    with pytest.raises(ProbeError, match="no such cgroup"), measuring(lone, [groups[0] / "missing"]):
        pass
    with measuring(lone, [groups[0]]) as source:
        groups[0].rmdir()
        assert "no such cgroup" in source.check()[0]
        source.measure()
