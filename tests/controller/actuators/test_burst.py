"""CPU burst: the kernel refuses a quota below it, so it goes down with the quota, and comes back (koordinator#2778)."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from slicepilot.controller.actuators.bandwidth import Bandwidth, bandwidth_files
from slicepilot.controller.actuators.node import NodeActuator, SliceTargets
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.watchdog.journal import Journal
from slicepilot.controller.watchdog.keeper import survey
from slicepilot.controller.watchdog.restore import restore

from .test_actuators import knobs
from .v2_files import V2Files, v2_files_of

__all__ = ["v2_files_of"]

SHORT = 10_000


def burst_file(group: Path) -> Path:
    return next((path for name in ("cpu.cfs_burst_us", "cpu.max.burst") if (path := group / name).exists()), group)


@pytest.fixture(params=["kernel", "v2", "v2, damaging bursts"])
def bursting(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A group of 1 CPU with a burst as large as its quota."""
    if request.param == "kernel":
        group: Path = request.getfixturevalue("groups")[0]
        if not burst_file(group).is_file():
            pytest.skip("this kernel has no CPU burst")
    else:
        files: V2Files = request.getfixturevalue("v2_files")
        group = files.group(tmp_path / "group")
        files.damages_burst = request.param != "v2"
    bandwidth_files(CpuGroup.at(group)).write(100_000, 100_000, 100_000)
    assert burst_file(group).read_text() == "100000\n"
    return group


def band(group: Path) -> Bandwidth:
    return bandwidth_files(CpuGroup.at(group)).read()


def test_a_burst_goes_down_with_the_quota_and_comes_back(bursting: Path) -> None:
    with NodeActuator([SliceTargets("a", bursting)], SHORT) as node:
        assert band(bursting) == (10_000, 10_000, 10_000)
        for limit, burst_us in ((400.0, 4_000), (100.0, 1_000), (900.0, 9_000), (math.inf, 100_000), (50.0, 1_000)):
            receipt = node.apply(knobs([limit], [0.0]))
            assert receipt.error is None
            assert receipt.applied.cpu_limit_mcpu[0, 0] == max(limit, 100.0)
            assert band(bursting)[2] == burst_us
            assert node.deviations() == []
    assert band(bursting) == (100_000, 100_000, 100_000)


def test_a_burst_comes_back_from_the_journal(bursting: Path) -> None:
    [original] = survey([SliceTargets("a", bursting)])
    journal = Journal.of((original,), os.getpid())
    assert Journal.parse(journal.dump(), "j") == journal
    node = NodeActuator([SliceTargets("a", bursting)], SHORT)
    try:
        node.apply(knobs([200.0], [0.0]))
        report = restore(journal)
        assert report.failed == []
        assert "burst" in report.restored[0]
        assert band(bursting) == (100_000, 100_000, 100_000)
    finally:
        node.close()


def test_a_burst_that_is_set_during_a_run_is_a_foreign_change(bursting: Path) -> None:
    with NodeActuator([SliceTargets("a", bursting)], SHORT) as node:
        node.apply(knobs([math.inf], [0.0]))
        bandwidth_files(CpuGroup.at(bursting)).write_quota(-1, 10_000, 50_000)
        [change] = node.deviations()
        assert "burst 50000 us instead of" in change.text
        node.reassert("a", "cpu_limit_mcpu", newest=True)
        assert node.apply(knobs([300.0], [0.0])).error is None
        assert band(bursting) == (3_000, 10_000, 3_000)
    assert band(bursting)[2] == 50_000, "the newest is put back"


def test_kernels_without_bursts_have_none(v2_files: V2Files, tmp_path: Path) -> None:
    group = v2_files.group(tmp_path / "group", without=("cpu.max.burst",))
    with NodeActuator([SliceTargets("a", group)], SHORT) as node:
        assert node.apply(knobs([400.0], [0.0])).error is None
        assert band(group) == (4_000, 10_000, 0)
    assert band(group) == (-1, 100_000, 0)
