"""CPU quota, weight and nice on real cgroups: written values hold, and the original settings are restored."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from slicepilot.controller.actuators.bandwidth import limit_mcpu
from slicepilot.controller.actuators.nice import RELIST_NS, ThreadNice
from slicepilot.controller.actuators.node import NodeActuator, SliceTargets
from slicepilot.controller.actuators.quota import CpuQuota
from slicepilot.controller.actuators.weight import GroupWeight
from slicepilot.controller.system.cgroup import CpuGroup, CpuHierarchy
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator import kernels
from slicepilot.env.simulator.quota_writes import QuotaWrites
from tests.controller.conftest import busy_process

from .v2_files import V2Files, v2_files_of

__all__ = ["v2_files_of"]


def cpu_s(process: subprocess.Popen[bytes]) -> float:
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1e9


def knobs(limits: list[float], nices: list[float], scope: str = "group") -> Knobs:
    limit, nice = (np.asarray(values, np.float32)[:, None] for values in (limits, nices))
    return Knobs.of(limit, nice, np.full_like(limit, np.inf), "process" if scope == "process" else "group")


def weight(group: Path) -> int:
    return int((group / ("cpu.shares" if (group / "cpu.shares").exists() else "cpu.weight")).read_text())


# -- quota -------------------------------------------------------------------------------------------------------


def test_quota_is_written_read_back_and_restored(groups: list[Path]) -> None:
    group = CpuGroup.at(groups[0])
    before = CpuQuota(group)
    result = before.read(), before.period_us
    quota = CpuQuota(group, 10_000)
    assert quota.set(432.15) == 432.15  # 4321.5 us: exact but for a whole microsecond
    assert quota.read() == pytest.approx(432.15, abs=0.051)
    assert quota.set(math.inf) == math.inf
    assert quota.read() == math.inf
    assert quota.set(20.0) == 100.0, "the kernel takes no quota below 1000 us"
    assert quota.read() == 100.0
    quota.restore()
    quota.restore()
    assert (before.read(), CpuQuota(group).period_us) == result


def test_a_quota_that_was_there_keeps_its_share_under_another_period(groups: list[Path]) -> None:
    group = CpuGroup.at(groups[0])
    pod = CpuQuota(group)
    pod.set(250.0)
    quota = CpuQuota(group, 10_000)
    assert quota.read() == 250.0
    quota.set(math.inf)
    quota.restore()
    assert pod.read() == 250.0
    assert CpuQuota(group).period_us == pod.period_us


@pytest.mark.realtime
def test_quota_limits_a_busy_group_also_while_it_changes_all_the_time(groups: list[Path]) -> None:
    """Each write refills the quota, so that writing at every tick would let a group have several times its limit."""
    quota = CpuQuota(CpuGroup.at(groups[0]), 10_000)
    quota.set(200.0)
    with busy_process(groups[0]) as process:
        time.sleep(0.3)
        used, start = cpu_s(process), time.monotonic()
        tick = start
        while tick < start + 1.5:
            quota.set(180.0 if round((tick - start) * 200) % 2 else 220.0)
            tick += 0.005
            time.sleep(max(tick - time.monotonic(), 0))
        share = (cpu_s(process) - used) / (time.monotonic() - start)
    assert 0.12 < share < 0.30


def test_the_simulator_rations_writes_as_the_node_does(groups: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    quota = CpuQuota(CpuGroup.at(groups[0]), 10_000)
    now = [quota._stocked_ns]
    monkeypatch.setattr("slicepilot.controller.actuators.quota.time.monotonic_ns", lambda: now[0])
    period_s, cfs_s = np.full(1, 0.00731, np.float32), np.full(1, 0.01, np.float32)
    writes, state = QuotaWrites(period_s, cfs_s, 1), np.zeros((kernels.NUM_STATE, 1, 1), np.float32)
    rng, held_back = np.random.default_rng(0), 0
    request = 500.0
    for _ in range(400):
        now[0] += 7_310_000
        move = rng.choice(["keep", "none", "small", "large"], p=[0.5, 0.05, 0.2, 0.25])
        if move == "none":
            request = math.inf
        elif move != "keep":
            request = min(request, 1000.0) * rng.uniform(0.99, 1.01) if move == "small" else rng.uniform(50.0, 1000.0)
        held = writes.hold(knobs([request], [0.0]), state).cpu_limit_mcpu[0, 0]
        assert quota.set(request) == pytest.approx(held, rel=2e-3)
        held_back += held != np.float32(request)
    assert 100 < held_back < 300


# -- weight and nice ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("request_mcpu", "shares", "v2_weight"), [(0, 2, 1), (250, 256, 35), (1000, 1024, 100)])
def test_a_cpu_request_becomes_the_weight_that_kubernetes_gives_it(
    groups: list[Path], hierarchy: CpuHierarchy, request_mcpu: float, shares: int, v2_weight: int
) -> None:
    base, expected = weight(groups[0]), shares if hierarchy.version == 1 else v2_weight
    knob = GroupWeight(CpuGroup.at(groups[0]))
    knob.deploy(request_mcpu)
    assert weight(groups[0]) == expected
    knob.set(-3)
    assert weight(groups[0]) == round(expected * 1991 / 1024)
    knob.deploy(None)
    assert weight(groups[0]) == base


@pytest.mark.parametrize("actual", [None, 341])
def test_group_weight_multiplies_the_original_weight(
    groups: list[Path], hierarchy: CpuHierarchy, actual: int | None
) -> None:
    file = groups[0] / ("cpu.shares" if hierarchy.version == 1 else "cpu.weight")
    if actual is not None:
        file.write_text(str(actual))
    base = weight(groups[0])
    knob = GroupWeight(CpuGroup.at(groups[0]))
    for nice, factor in ((-20, 88761 / 1024), (-5, 3121 / 1024), (0, 1.0), (5, 335 / 1024), (19, 15 / 1024)):
        assert knob.set(nice) == nice
        low, high = (2, 262_144) if hierarchy.version == 1 else (1, 10_000)
        assert weight(groups[0]) == pytest.approx(min(max(base * factor, low), high), abs=0.51)
        held = weight(groups[0])
        knob.set(knob.read())
        assert weight(groups[0]) == held
    knob.restore()
    assert weight(groups[0]) == base


THREADS = """
import os, sys, threading, time
def hold():
    os.write(1, b"%d\\n" % threading.get_native_id())  # one write a line: they all begin at once
    time.sleep(60)
for _ in range(3):
    threading.Thread(target=hold, daemon=True).start()
time.sleep(0.1)
print("started", flush=True)
sys.stdin = None
os.kill(os.getpid(), 19)
threading.Thread(target=hold, daemon=True).start()
time.sleep(60)
"""


@pytest.mark.realtime
def test_nice_reaches_all_threads_also_new_threads_and_comes_back(groups: list[Path]) -> None:
    with busy_process(code=THREADS) as process, busy_process() as late:
        assert process.stdout is not None
        threads = [process.pid, *(int(process.stdout.readline()) for _ in range(3))]
        assert process.stdout.readline() == b"started\n"
        os.setpriority(os.PRIO_PROCESS, threads[1], 3)
        (groups[0] / "cgroup.procs").write_text(str(process.pid))
        knob = ThreadNice(CpuGroup.at(groups[0]))
        assert knob.set(7) == 7
        assert [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads] == [7, 7, 7, 7]

        process.send_signal(signal.SIGCONT)
        started = int(process.stdout.readline())  # inherits 7
        (groups[0] / "cgroup.procs").write_text(str(late.pid))  # comes with its own
        time.sleep(RELIST_NS / 1e9)
        knob.set(7)
        assert os.getpriority(os.PRIO_PROCESS, late.pid) == 7
        knob.set(-2)
        assert {os.getpriority(os.PRIO_PROCESS, t) for t in (*threads, started, late.pid)} == {-2}
        assert knob.read() == -2

        knob.restore()
        knob.restore()
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads] == [own, 3, own, own]
        assert os.getpriority(os.PRIO_PROCESS, started) == own, "a thread started under our nice has its process's own"
        assert os.getpriority(os.PRIO_PROCESS, late.pid) == own


# -- the node ----------------------------------------------------------------------------------------------------


def test_an_original_limit_is_not_exceeded_where_that_is_not_wanted(groups: list[Path]) -> None:
    CpuQuota(CpuGroup.at(groups[0])).set(600)
    before = limit_mcpu(CpuGroup.at(groups[0]))
    with NodeActuator([SliceTargets("a", groups[0], within_original=True)]) as node:
        for request, held in ((400, 400), (900, 600), (np.inf, 600), (0, 600), (500, 500)):
            receipt = node.apply(knobs([request], [0]))
            assert receipt.error is None
            assert receipt.applied.cpu_limit_mcpu.item() == node.read().cpu_limit_mcpu.item() == held
        assert node.deviations() == []
    assert limit_mcpu(CpuGroup.at(groups[0])) == before == 600
    with NodeActuator([SliceTargets("a", groups[0])]) as node:
        assert node.apply(knobs([900], [0])).applied.cpu_limit_mcpu.item() == 900
    with NodeActuator([SliceTargets("b", groups[1], within_original=True)]) as node:
        assert node.apply(knobs([900], [0])).applied.cpu_limit_mcpu.item() == 900, "there was none"
    with NodeActuator([SliceTargets("c", groups[2], ceiling_mcpu=800.0)]) as node:
        for request, held in ((np.inf, 800), (900, 800), (300, 300)):
            assert node.apply(knobs([request], [0])).applied.cpu_limit_mcpu.item() == held


def test_scope_of_nice_moves_from_group_to_threads_and_back(groups: list[Path]) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with busy_process(groups[0]) as process, NodeActuator([SliceTargets("a", groups[0])]) as node:
        knob = GroupWeight(CpuGroup.at(groups[0]))
        node.apply(knobs([np.inf], [5]))
        assert (knob.read(), os.getpriority(os.PRIO_PROCESS, process.pid)) == (5, own)
        assert node.apply(knobs([np.inf], [5], "process")).applied.nice_scope == "process"
        assert (knob.read(), os.getpriority(os.PRIO_PROCESS, process.pid)) == (0, 5)
        node.apply(knobs([np.inf], [5]))
        assert (knob.read(), os.getpriority(os.PRIO_PROCESS, process.pid)) == (5, own)


AT_EXIT = """
import sys
from pathlib import Path
import numpy as np
from slicepilot.controller.actuators.node import NodeActuator, SliceTargets
from slicepilot.env.knobs import Knobs
node = NodeActuator([SliceTargets("a", Path(sys.argv[1]))])
none = np.full((1, 1), np.inf, np.float32)
node.apply(Knobs.of(np.full((1, 1), 300, np.float32), np.full((1, 1), 4, np.float32), none))
raise SystemExit(3)
"""


def test_a_process_that_forgets_to_close_restores_at_exit(groups: list[Path]) -> None:
    result = subprocess.run([sys.executable, "-c", AT_EXIT, str(groups[0])], check=False, timeout=60)
    assert result.returncode == 3
    group = CpuGroup.at(groups[0])
    assert (CpuQuota(group).read(), GroupWeight(group).read()) == (math.inf, 0)


# -- cgroup v2, as files: this machine may have version 1 only ------------------------------------------------------


def test_v2_quota_format(v2_files: V2Files, tmp_path: Path) -> None:
    limit = v2_files.group(tmp_path) / "cpu.max"
    quota = CpuQuota(CpuGroup.at(tmp_path), 20_000)
    assert limit.read_text() == "max 20000\n"
    quota.set(1500.0)
    assert limit.read_text() == "30000 20000\n"
    assert quota.read() == 1500.0
    quota.restore()
    assert limit.read_text() == "max 100000\n"


def test_v2_weight_goes_through_nice_only_where_the_group_has_the_default(v2_files: V2Files, tmp_path: Path) -> None:
    files = [v2_files.group(tmp_path) / name for name in ("cpu.weight", "cpu.weight.nice")]
    GroupWeight(CpuGroup.at(tmp_path)).set(17)
    assert [file.read_text() for file in files] == ["2\n", "17\n"], "that weight alone would be of level 18"
    v2_files.write(files[0], "39")
    knob = GroupWeight(CpuGroup.at(tmp_path))
    knob.set(-7)
    assert files[0].read_text() == f"{round(39 * 4904 / 1024)}\n"
    knob.restore()
    assert files[0].read_text() == "39\n"


@pytest.mark.parametrize(
    ("mounts", "version"),
    [
        ("cgroup2 {0} cgroup2 rw 0 0\n", 2),
        ("cgroup2 {0}/empty cgroup2 rw 0 0\ncgroup {0} cgroup rw,cpu,cpuacct 0 0\n", 1),
        ("cgroup {0}/empty cgroup rw,cpuset 0 0\ncgroup2 {0} cgroup2 rw 0 0\n", 2),
    ],
)
def test_the_hierarchy_is_the_mount_with_the_cpu_controller(
    v2_files: V2Files, tmp_path: Path, mounts: str, version: int
) -> None:
    table = v2_files.group(tmp_path) / "mounts"
    table.write_text(mounts.format(tmp_path))
    assert CpuHierarchy.find(table) == CpuHierarchy(1 if version == 1 else 2, tmp_path)


# -- what is left alone, and what is gone --------------------------------------------------------------------------


def test_knobs_that_are_left_alone_are_neither_written_nor_restored(groups: list[Path]) -> None:
    targets = [
        SliceTargets("a", groups[0], left=frozenset({"nice"})),
        SliceTargets("b", groups[1], left=frozenset({"cpu_limit_mcpu"})),
        SliceTargets("c", None),
    ]
    weights = [GroupWeight(CpuGroup.at(group)) for group in groups[:2]]
    CpuQuota(CpuGroup.at(groups[1])).set(700.0)
    with NodeActuator(targets) as node:
        receipt = node.apply(knobs([500.0, 500.0, 500.0], [-3.0, -3.0, -3.0]))
        assert receipt.error is None
        assert receipt.applied.cpu_limit_mcpu[:, 0].tolist() == [500.0, 700.0, math.inf]
        assert receipt.applied.nice[:, 0].tolist() == [0.0, -3.0, 0.0]
        assert [knob.read() for knob in weights] == [0, -3]
        weights[0].set(5)
        CpuQuota(CpuGroup.at(groups[1])).set(300.0)
        assert node.deviations() == []
    assert [knob.read() for knob in weights] == [5, 0]
    assert [CpuQuota(CpuGroup.at(group)).read() for group in groups[:2]] == [math.inf, 300.0]


def test_a_slice_that_moves_on_leaves_its_old_group_as_it_was(groups: list[Path], tmp_path: Path) -> None:
    """A link leads to the group that a slice's UPF is in."""
    link = tmp_path / "group"
    link.symlink_to(groups[0])
    quotas = [CpuQuota(CpuGroup.at(group)) for group in groups[:2]]
    with NodeActuator([SliceTargets("a", link)]) as node:
        node.apply(knobs([400.0], [-2.0]))
        link.unlink()
        link.symlink_to(groups[1])
        assert node.refresh() == []
        assert [quota.read() for quota in quotas] == [math.inf, math.inf]
        node.apply(knobs([250.0], [-2.0]))
        assert [quota.read() for quota in quotas] == [math.inf, 250.0]
    assert [quota.read() for quota in quotas] == [math.inf, math.inf]


def test_a_target_that_is_missing_leaves_nothing_changed(groups: list[Path]) -> None:
    targets = [SliceTargets("a", groups[0]), SliceTargets("b", groups[0] / "nothing")]
    period = CpuQuota(CpuGroup.at(groups[0])).period_us
    with pytest.raises(ActuatorError, match="nothing: no such cgroup"):
        NodeActuator(targets, 10_000)
    assert CpuQuota(CpuGroup.at(groups[0])).period_us == period


def test_requests_that_change_while_a_slice_is_opened_anew_are_those_it_gets(
    groups: list[Path], hierarchy: CpuHierarchy, tmp_path: Path
) -> None:
    link, go = tmp_path / "group", threading.Event()
    link.symlink_to(groups[0])
    with NodeActuator([SliceTargets("a", link)], renew=lambda _: go.wait(10), wait_s=0.0005) as node:
        node.deploy(np.array([250.0]))
        link.unlink()
        link.symlink_to(groups[1])
        assert len(node.refresh()) == 1, "it is being opened"
        node.deploy(np.array([1000.0]))
        go.set()
        until_s = time.monotonic() + 5
        while node.refresh() and time.monotonic() < until_s:
            time.sleep(0.001)
        assert weight(groups[1]) == (1024 if hierarchy.version == 1 else 100)
