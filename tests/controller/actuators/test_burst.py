"""CPU burst on real cgroups: it goes with the quota, comes back with it, and never keeps a quota from sinking."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

import pytest

from slicepilot.controller.actuators.burst import burst_of, name_of
from slicepilot.controller.actuators.quota import CpuQuota, QuotaConfig
from slicepilot.controller.actuators.slice_knobs import SliceTargets
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.watchdog.journal import Journal
from slicepilot.controller.watchdog.restore import restore
from slicepilot.controller.watchdog.survey import survey

HALF = QuotaConfig(period_us=10_000, burst_ratio=0.5, write_stock=100.0)


@pytest.fixture
def group(groups: list[Path]) -> CpuGroup:
    found = CpuGroup.at(groups[0])
    with contextlib.ExitStack() as undo:
        burst = burst_of(found)
        if burst is None:
            pytest.skip("needs Linux 5.14: CPU burst")
        undo.callback(burst.close)
    return found


def burst_us(group: CpuGroup) -> int:
    return int((group.path / name_of(group)).read_text())


def test_the_burst_is_a_share_of_the_quota_whichever_way_that_moves(group: CpuGroup) -> None:
    with contextlib.closing(CpuQuota(group, HALF)) as quota:
        for limit, expected in ((800.0, 4000), (200.0, 1000), (500.0, 2500), (math.inf, 0), (100.0, 500)):
            assert quota.set(limit) == limit
            assert burst_us(group) == expected
        quota.restore()
    assert burst_us(group) == 0


def test_what_was_found_comes_back(group: CpuGroup) -> None:
    with contextlib.closing(CpuQuota(group)) as before:
        before.set(600.0)
        period_us = before.period_us
        (group.path / name_of(group)).write_text(str(round(0.6 * period_us)))
        with contextlib.closing(CpuQuota(group, HALF)) as quota:
            quota.set(100.0)
            assert burst_us(group) == 500
            quota.restore()
        assert (before.read(), burst_us(group)) == (600.0, round(0.6 * period_us))
        (group.path / name_of(group)).write_text("0")
        before.restore()


def test_a_journal_puts_it_back_after_a_crash(group: CpuGroup) -> None:
    journal = Journal.of(survey([SliceTargets("a", group.path)]), os.getpid())
    assert journal.slices[0].burst_us == 0
    with contextlib.closing(CpuQuota(group, HALF)) as quota:
        quota.set(800.0)
    assert burst_us(group) == 4000
    report = restore(journal)
    assert any("burst 4000 us -> 0 us" in line for line in map(str, vars(report).values()))
    assert burst_us(group) == 0
    with contextlib.closing(CpuQuota(group)) as after:
        assert after.read() == math.inf
