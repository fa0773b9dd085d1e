"""`node check` says which knobs act, and `--try` what each did: never more than the evidence holds."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.data.intervals import Interval
from slicepilot.env.knobs import CPU_LIMIT, EGRESS, NICE
from slicepilot.node.authority.rivals import rivals_of
from slicepilot.node.check.report import Passed
from slicepilot.node.check.trial import Effect

from .foreign import Foreign
from .test_foreign import slicepilot

BURN_NS = "600000"
STILL = Interval(1.0, 0.98, 1.02)


def effect(carried: Interval, delay: Interval, knob: int = CPU_LIMIT, wanted: float = 1.6) -> bool | None:
    return Effect(knob, 1.0, carried, delay, wanted, 6).acts


@pytest.mark.parametrize(
    ("carried", "delay"),
    [
        (Interval(0.66, 0.36, 1.20), Interval(1.77, 0.181, 17.4)),
        (Interval(0.64, 0.30, 1.37), Interval(1.69, 0.192, 15.0)),
        (STILL, Interval(1.3, 0.48, 3.62)),
        (Interval(0.9, 0.75, 1.1), STILL),
    ],
)
def test_an_interval_that_contains_one_is_no_evidence_of_absence(carried: Interval, delay: Interval) -> None:
    """As in reports of 100 ms periods (kubernetes#67577): wide intervals of knobs that act."""
    assert effect(carried, delay) is None
    assert effect(carried, delay, EGRESS) is None


def test_a_knob_does_not_act_where_the_slice_wanted_more_and_nothing_changed() -> None:
    assert effect(STILL, STILL) is False
    assert effect(STILL, STILL, wanted=1.1) is None, "the limit had nothing to hold back"
    assert effect(STILL, STILL, wanted=math.nan) is None
    assert effect(STILL, STILL, NICE, math.nan) is None, "a weight is felt by who is short of CPU time alone"
    assert Effect(CPU_LIMIT, 1.0, obstacle="requested 1: EINVAL", refused=True).acts is False


def test_no_more_packets_come_by_a_queue_than_left() -> None:
    assert Passed("n6", 2845).share_of(2680) == "all 2680 packets that left came by the queue of n6"
    assert Passed("n6", 12).share_of(2680) == "of 2680 packets that left, 12 came by the queue of n6"


def test_a_knob_acts_where_the_slice_felt_it() -> None:
    assert effect(Interval(0.6, 0.5, 0.7), Interval(1.0, 0.1, 9.0)) is True
    assert effect(STILL, Interval(50.0, 9.0, 300.0)) is True
    assert effect(Interval(0.98, 0.97, 0.99), STILL) is False, "so little is not what it was moved by"


@contextlib.contextmanager
def upfs(folder: Path, count: int = 1) -> Iterator[tuple[Foreign, Path]]:
    """UPFs under a load of a fifth of a CPU each, and their configuration."""
    with Foreign(folder, count=count, prefix="fc", BURN_NS=BURN_NS) as foreign:
        node = folder / "node.yaml"
        node.write_text(yaml.safe_dump(foreign.document()))
        foreign.load(seconds=300, mbps=3)
        try:
            yield foreign, node
        finally:
            foreign.stop_loads()


def checked(node: Path, *options: str, code: int = 0) -> list[dict[str, Any]]:
    done = slicepilot("node", "check", str(node), "--seconds", "1", "--json", *options, code=code)
    result: list[dict[str, Any]] = json.loads(done.stdout)
    return result


@pytest.mark.skipif(CpuHierarchy.find().version == 2, reason="writes files of version 1")
def test_a_limit_with_the_usual_period_is_tried_at_its_own_pace(tmp_path: Path) -> None:
    """Writes of a limit of 100 ms periods are rationed to one a second."""
    with upfs(tmp_path) as (foreign, node):
        files = [foreign.group(1) / name for name in ("cpu.cfs_period_us", "cpu.cfs_quota_us")]
        for file, value in zip(files, (100_000, 50_000), strict=True):
            file.write_text(str(value))
        [result] = checked(node, "--try")
        assert [int(file.read_text()) for file in files] == [100_000, 50_000]
    knobs = result["knobs"]
    assert knobs["cpu_limit"]["verdict"] == "acts", knobs
    assert knobs["cpu_limit"]["authority"] is True
    assert knobs["cpu_limit"]["tried"]["moved_to"] < 0.7 * result["traffic"]["cpu_use_mcpu"]
    assert knobs["egress"]["authority"] is True, knobs
    assert knobs["nice"]["verdict"] == "not known yet", "it is alone in its group"


def test_rivals_are_those_that_may_use_the_same_cpus(tmp_path: Path) -> None:
    root = CpuHierarchy.find().root / f"sp-rivals-{os.getpid()}"
    own, other = root / "own", root / "other"
    cpus = sorted(os.sched_getaffinity(0))
    for path in (root, own, other):
        path.mkdir()
        if CpuHierarchy.find().version == 2:
            (path / "cgroup.subtree_control").write_text("+cpu")
    pin = f"import os, time; os.sched_setaffinity(0, {{{cpus[0]}}}); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-S", "-c", pin], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert rivals_of(own, cpus) == ""
            (other / "cgroup.procs").write_text(str(process.pid))
            assert rivals_of(own, cpus) == "1 group"
            assert rivals_of(own, cpus[1:]) == ""
        finally:
            process.kill()
            process.wait()
            for path in (other, own, root):
                path.rmdir()
