"""The least CPU quota that there is: read, reported, respected and put back."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from slicepilot.controller.actuators.bandwidth import bandwidth_files
from slicepilot.controller.actuators.quota import CpuQuota
from slicepilot.controller.system.cgroup import CpuGroup, CpuHierarchy
from tests.node.foreign import Foreign, written
from tests.node.test_foreign import controller, knobs, slicepilot, until

from .faults import IN_REAL_TIME_AS_ROOT, bandwidth, ticking

pytestmark = IN_REAL_TIME_AS_ROOT


LEAST = [(1000, 1_000_000), (1000, 100_000), (1000, 1000)]


@pytest.mark.parametrize(("quota_us", "period_us"), LEAST)
def test_the_least_quota_is_read_reported_and_put_back(
    foreign: Foreign, node: Path, tmp_path: Path, quota_us: int, period_us: int
) -> None:
    mcpu = 1e3 * quota_us / period_us
    with bandwidth(foreign.group(2), quota_us, period_us):
        result = json.loads(slicepilot("node", "check", str(node), "--seconds", "0.3", "--json", code=1).stdout)
        note = f"its original CPU limit is {mcpu:g} mCPU: control changes it, and restores it at the end"
        assert note in result[1]["notes"]
        assert not any("original CPU limit" in note for note in result[0]["notes"])
        before = knobs(foreign)
        with controller(node, foreign, tmp_path) as running:
            until(lambda: knobs(foreign) != before, "nothing was moved")
            foreign.load(seconds=2, mbps=2)
            ticking(running)
            assert running.notes()["last_error"] in (None, "")
        assert knobs(foreign) == before
        foreign.carried_mbps()


@pytest.mark.parametrize(("quota_us", "period_us"), LEAST)
def test_the_least_quota_that_somebody_sets_is_respected_and_taken_back(
    foreign: Foreign, node: Path, tmp_path: Path, quota_us: int, period_us: int
) -> None:
    before = knobs(foreign)
    where = ["--name", foreign.prefix, "--run-root", str(tmp_path / "run")]
    with controller(node, foreign, tmp_path) as running:
        until(lambda: knobs(foreign) != before, "nothing was moved")
        with bandwidth(foreign.group(2), quota_us, period_us):
            until(lambda: bool(running.notes()["foreign"]), "not noticed", 5.0)
            [change] = running.notes()["foreign"]
            assert (change["slice"], change["knob"], change["policy"]) == ("slice2", "cpu_limit_mcpu", "respect")
            assert change["found"] == pytest.approx(1e3 * quota_us / period_us)
            assert f"quota {quota_us} us in {period_us} us instead of " in change["text"]
            slicepilot("control", "resume", *where)
            until(lambda: not running.notes()["foreign"], "not taken back", 5.0)
        ticking(running)
    assert knobs(foreign) == before


def test_where_a_group_above_allows_no_more_the_groups_own_period_stays(foreign: Foreign) -> None:
    """Under cgroup v1 a group has at most what its parent has, and the least quota of a shorter period is more."""
    if CpuHierarchy.find().version != 1:
        pytest.skip("version 2 takes the lesser of the two")
    group = foreign.group(2)
    with bandwidth(group.parent, 1000, 1_000_000), bandwidth(group, 1000, 1_000_000):
        quota = CpuQuota(CpuGroup.at(group), 100_000)
        with closing(quota):
            assert quota.period_us == 1_000_000
            assert quota.read() == 1.0
            assert quota.set(np.inf) == np.inf
            quota.restore()
        with closing(bandwidth_files(CpuGroup.at(group))) as files:
            assert files.read()[:2] == (1000, 1_000_000)


def test_bounds_that_no_limit_can_keep_to_are_refused_and_a_lower_one_is_said(foreign: Foreign, tmp_path: Path) -> None:
    def checked(low: float, high: float, period_ms: float, code: int) -> subprocess.CompletedProcess[str]:
        slices = foreign.document()["slices"]
        slices[0]["bounds"] = {"cpu_limit_mcpu": [low, high]}
        path = str(written(tmp_path, foreign.prefix, *slices, quota_period_ms=period_ms))
        return slicepilot("node", "check", path, "--seconds", "0.3", "--json", code=code)

    [line] = checked(50, 99, 10, 2).stderr.splitlines()
    assert "slice1: bounds.cpu_limit_mcpu = 99 at most: " in line
    assert "is 100 mCPU in quota_period_ms = 10" in line
    for low, said in ((1, True), (10, False)):
        notes = json.loads(checked(low, 1000, 100, 1).stdout)[0]["notes"]
        assert any(note.startswith("CPU limits below 10 mCPU are set as 10: ") for note in notes) is said
