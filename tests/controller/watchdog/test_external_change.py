"""Another program sets a knob: it is noticed, reported, and respected or set again a few times."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.controller.actuators.bandwidth import bandwidth_files
from slicepilot.controller.actuators.nice import RELIST_NS
from slicepilot.controller.actuators.node import NodeActuator, SliceTargets
from slicepilot.controller.actuators.weight import weight_file
from slicepilot.controller.contracts.modes import Mode
from slicepilot.controller.contracts.orders import Order
from slicepilot.controller.service import controller
from slicepilot.controller.service.run_config import RunConfig
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.telemetry.layout import FOLDER
from slicepilot.controller.watchdog.external_change import ExternalChange, ExternalChangeConfig, ExternalChangeWatch
from slicepilot.controller.watchdog.keeper import JournalKeeper
from slicepilot.controller.watchdog.restore import restore
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.testbed.bench.node import BenchNode
from slicepilot.testbed.bench.run import bench_run, opened
from tests.controller.conftest import busy_process

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups and network namespaces")

SECOND_NS = 1_000_000_000


def knobs(limit: float, nice: float = 0.0, rate: float = math.inf, scope: str = "group", count: int = 1) -> Knobs:
    arrays = [np.full((count, 1), value, np.float32) for value in (limit, nice, rate)]
    return Knobs.of(arrays[0], arrays[1], arrays[2], "process" if scope == "process" else "group")


class Group:
    """Quota, period and weight of a group, as a stranger reads and writes them."""

    def __init__(self, path: Path) -> None:
        group = CpuGroup.at(path)
        self._band, self._weight = bandwidth_files(group), weight_file(group)

    @property
    def bandwidth(self) -> tuple[int, int]:
        return self._band.read()[:2]

    @bandwidth.setter
    def bandwidth(self, value: tuple[int, int]) -> None:
        self._band.write(*value)

    @property
    def weight(self) -> int:
        return int(self._weight.read())

    @weight.setter
    def weight(self, value: int) -> None:
        self._weight.write(b"%d" % value)

    def close(self) -> None:
        self._band.close()
        self._weight.close()


@pytest.fixture
def group(groups: list[Path]) -> Iterator[Group]:
    with contextlib.closing(Group(groups[0])) as made:
        yield made


@pytest.fixture
def node(groups: list[Path]) -> Iterator[NodeActuator]:
    with NodeActuator([SliceTargets("a", groups[0])], 10_000) as made:
        yield made


def test_what_only_we_set_is_not_foreign(groups: list[Path], node: NodeActuator) -> None:
    watch = ExternalChangeWatch(node)
    with busy_process(groups[0]):
        for step in range(40):
            node.apply(knobs(100.0 + 7 * step, step % 40 - 20, scope=["group", "process"][step // 20]))
            if step == 10:
                node.deploy(np.full(1, 250, np.float32))
            assert watch.look(step * SECOND_NS) == []
        node.apply(knobs(math.inf))
        assert watch.look(0) == []


def test_a_foreign_quota_is_respected_until_an_operator_resumes(
    node: NodeActuator, groups: list[Path], group: Group, tmp_path: Path
) -> None:
    keeper = JournalKeeper(tmp_path, [SliceTargets("a", groups[0])])
    watch = ExternalChangeWatch(node, keeper=keeper)
    result = -1, 100_000
    node.apply(knobs(500.0, 3))
    group.bandwidth = 30_000, 100_000
    assert watch.look(0) == [
        ExternalChange(
            "a",
            "cpu_limit_mcpu",
            300.0,
            500.0,
            "respect",
            "quota 30000 us in 100000 us instead of quota 5000 us in 10000 us",
        )
    ]
    assert node.receipt.applied.cpu_limit_mcpu.item() == 300.0
    receipt = node.apply(knobs(700.0, 5))
    assert (receipt.applied.cpu_limit_mcpu.item(), receipt.applied.nice.item(), receipt.error) == (300.0, 5, None)
    assert node.apply(knobs(700.0, 5)).same_as(receipt), "nothing to write"
    assert group.bandwidth == (30_000, 100_000)

    group.bandwidth = -1, 50_000
    assert watch.look(SECOND_NS) == [], "theirs already"
    assert node.receipt.applied.cpu_limit_mcpu.item() == math.inf
    assert [change.knob for change in watch.standing] == ["cpu_limit_mcpu"]
    assert keeper.journal.released == (("a", "cpu_limit_mcpu"),)

    watch.resume()
    assert (watch.standing, group.bandwidth) == ([], (-1, 10_000))
    assert keeper.journal.released == ()
    assert node.apply(knobs(700.0, 5)).applied.cpu_limit_mcpu.item() == 700.0
    assert watch.look(2 * SECOND_NS) == []
    node.restore()
    assert group.bandwidth == result


def test_what_was_left_to_others_stays_when_we_end_or_are_ended(
    groups: list[Path], group: Group, tmp_path: Path
) -> None:
    targets = [SliceTargets("a", groups[0])]
    weight = group.weight
    for ended in (False, True):
        keeper = JournalKeeper(tmp_path, targets)
        node = NodeActuator(targets, 10_000)
        watch = ExternalChangeWatch(node, keeper=keeper)
        node.apply(knobs(500.0, -7))
        group.weight = 333
        assert [(change.knob, change.ours) for change in watch.look(0)] == [("nice", -7)]
        if ended:
            report = restore(keeper.journal)
            assert (report.released, report.failed) == (["a: nice"], [])
        node.close()
        assert (group.bandwidth, group.weight) == ((-1, 100_000), 333)
        keeper.remove()
        group.weight = weight


def test_ours_is_set_again_but_not_more_often_than_allowed(node: NodeActuator, group: Group) -> None:
    watch = ExternalChangeWatch(node, ExternalChangeConfig("reassert", most_reasserts=2, window_s=10.0))
    node.apply(knobs(500.0))
    done = []
    for second in (0, 1, 11.5, 12, 13):
        group.bandwidth = 30_000, 100_000
        done += [change.policy for change in watch.look(round(second * SECOND_NS))]
        if done[-1] == "reassert":
            assert group.bandwidth == (5000, 10_000)
    assert done == ["reassert", "reassert", "reassert", "reassert", "respect"]
    assert "reasserted 2 times in 10 s" in watch.standing[0].text
    assert node.apply(knobs(600.0)).applied.cpu_limit_mcpu.item() == 300.0


def test_threads_that_others_renice_are_left_alone(groups: list[Path], node: NodeActuator) -> None:
    watch = ExternalChangeWatch(node)
    with busy_process(groups[0]) as first, busy_process(groups[0]) as second:
        node.apply(knobs(math.inf, 4, scope="process"))
        os.setpriority(os.PRIO_PROCESS, first.pid, 9)
        for nice in (4, 5, 6):
            time.sleep(RELIST_NS / 1e9)
            node.apply(knobs(math.inf, nice, scope="process"))
        assert [os.getpriority(os.PRIO_PROCESS, p.pid) for p in (first, second)] == [9, 6]
        [foreign] = watch.look(0)
        assert (foreign.knob, foreign.text) == ("nice", f"thread {first.pid}: nice 9 instead of 6")
        time.sleep(RELIST_NS / 1e9)
        node.apply(knobs(math.inf, -3, scope="process"))
        assert os.getpriority(os.PRIO_PROCESS, second.pid) == 6, "the slice's nice is theirs now"
        watch.resume()
        node.apply(knobs(math.inf, -3, scope="process"))
        assert {os.getpriority(os.PRIO_PROCESS, p.pid) for p in (first, second)} == {-3}
        node.apply(knobs(math.inf))
        assert {os.getpriority(os.PRIO_PROCESS, p.pid) for p in (first, second)} == {os.getpriority(os.PRIO_PROCESS, 0)}


def test_originals_of_threads_are_in_the_journal_before_they_are_reniced(groups: list[Path], tmp_path: Path) -> None:
    targets = [SliceTargets("a", groups[0])]
    keeper = JournalKeeper(tmp_path, targets)
    seen: list[list[int]] = []

    def remember(name: str, threads: object) -> None:
        seen.append([os.getpriority(os.PRIO_PROCESS, thread) for thread in (first.pid,)])
        raise ActuatorError("no room")

    with busy_process(groups[0]) as first, NodeActuator(targets, remember=remember) as node:
        assert "no room" in str(node.apply(knobs(math.inf, 4, scope="process")).error)
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert (seen, os.getpriority(os.PRIO_PROCESS, first.pid)) == ([[own]], own), "not on disk: not reniced"
    with busy_process(groups[0]) as first, NodeActuator(targets, remember=keeper.remember) as node:
        node.apply(knobs(math.inf, 4, scope="process"))
        [thread] = keeper.journal.slices[0].threads
        assert (thread.thread, thread.process, thread.nice) == (first.pid, first.pid, own)
        assert restore(keeper.journal).restored == ["a: nice of 1 threads"]
        assert os.getpriority(os.PRIO_PROCESS, first.pid) == own


def test_a_slice_that_was_made_anew_is_ours_again(groups: list[Path], tmp_path: Path) -> None:
    targets = [SliceTargets("a", groups[0])]
    keeper = JournalKeeper(tmp_path, targets)
    with NodeActuator(targets, remember=keeper.remember, renew=keeper.renew) as node:
        watch = ExternalChangeWatch(node, keeper=keeper)
        with contextlib.closing(Group(groups[0])) as group:
            group.bandwidth = 30_000, 100_000
        assert len(watch.look(0)) == len(watch.standing) == len(keeper.journal.released) == 1
        groups[0].rmdir()
        groups[0].mkdir()
        assert node.refresh() == []
        assert (watch.look(SECOND_NS), watch.standing, keeper.journal.released) == ([], [], ())
        assert node.apply(knobs(500.0)).applied.cpu_limit_mcpu.item() == 500.0
        assert keeper.journal.slices[0].cgroup_inode == groups[0].stat().st_ino


# -- egress ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def devices() -> Iterator[BenchNode]:
    with BenchNode(SliceSet.from_yaml("testbed-five")) as made:
        yield made


def tc(target: SliceTargets, *arguments: str) -> str:
    command = ["nsenter", f"--net={target.netns}", "tc", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout


@pytest.fixture
def shaped(devices: BenchNode) -> Iterator[tuple[NodeActuator, SliceTargets]]:
    """A slice shaped to 12.5 Mbit/s."""
    target = devices.targets[0]
    device = str(target.egress_device)
    with NodeActuator([target]) as node:
        node.apply(knobs(math.inf, 0, 12.5))
        yield node, target
    with contextlib.suppress(subprocess.CalledProcessError):
        tc(target, "qdisc", "del", "dev", device, "root")


def test_a_foreign_rate_is_respected(shaped: tuple[NodeActuator, SliceTargets]) -> None:
    node, target = shaped
    watch = ExternalChangeWatch(node)
    device = str(target.egress_device)
    tc(target, "class", "change", "dev", device, "parent", "51ce:", "classid", "51ce:1", "htb", "rate", "40mbit")
    [foreign] = watch.look(0)
    assert (foreign.knob, foreign.found, foreign.ours) == ("egress_mbps", 40.0, 12.5)
    assert foreign.text == "40 Mbit/s instead of 12.5 Mbit/s"
    assert node.apply(knobs(math.inf, 0, 20.0)).applied.egress_mbps.item() == 40.0
    assert "rate 40Mbit" in tc(target, "class", "show", "dev", device)
    watch.resume()
    assert node.apply(knobs(math.inf, 0, 20.0)).applied.egress_mbps.item() == 20.0
    assert "rate 20Mbit" in tc(target, "class", "show", "dev", device)


def test_a_shaper_that_was_taken_off_is_put_back_if_that_is_the_policy(
    shaped: tuple[NodeActuator, SliceTargets],
) -> None:
    node, target = shaped
    device = str(target.egress_device)
    tc(target, "qdisc", "del", "dev", device, "root")
    error = node.apply(knobs(500.0, 0, 20.0)).error
    assert error is not None
    assert "the shaper is gone" in error
    assert node.apply(knobs(600.0, 0, 20.0)).applied.cpu_limit_mcpu.item() == 600.0, "the slice itself goes on"
    [foreign] = ExternalChangeWatch(node, ExternalChangeConfig("reassert")).look(0)
    assert (foreign.found, foreign.policy) == (math.inf, "reassert")
    assert "rate 12500Kbit" in tc(target, "class", "show", "dev", device)
    assert node.apply(knobs(600.0, 0, 20.0)).error is None


def test_a_foreign_qdisc_stays_whatever_the_policy(shaped: tuple[NodeActuator, SliceTargets]) -> None:
    node, target = shaped
    device = str(target.egress_device)
    tc(target, "qdisc", "replace", "dev", device, "root", "handle", "7:", "pfifo", "limit", "99")
    [foreign] = ExternalChangeWatch(node, ExternalChangeConfig("reassert")).look(0)
    assert foreign.policy == "respect"
    assert "a qdisc with handle 7: is configured" in foreign.text
    assert node.apply(knobs(math.inf, 0, 20.0)).error is None
    node.close()
    assert "pfifo 7: root" in tc(target, "qdisc", "show", "dev", device)


@pytest.mark.skipif(not (FOLDER / "packets.bpf.o").exists(), reason="no BPF objects: make bpf")
def test_what_a_switch_to_shadow_restores_is_no_foreign_change(
    devices: BenchNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop looks at each tick instead of once a second."""
    monkeypatch.setattr(controller, "PERIODIC_TASK_S", 0.01)
    slices = SliceSet.from_yaml("testbed-five")
    errors: list[str | None] = []

    with (
        opened(devices, slices, period_ms=10.0) as node,
        bench_run(RunConfig(agent="static-weights-9-nice"), node) as run,
    ):
        running = run.operation

        def switch() -> None:
            with contextlib.ExitStack() as undo:
                undo.callback(setattr, run.stop, "requested", True)
                for mode in (Mode.SHADOW, Mode.LIVE) * 8:
                    running.carry_out(Order("mode", mode, (), force=True))
                    time.sleep(0.05)
                    errors.append(running.loop.report.last_error)

        thread = threading.Thread(target=switch)
        thread.start()
        running.run(None, force=True)
        thread.join()
        last: dict[str, Any] = {}
        for part in running.notes:
            last |= part()
    assert errors == [None] * 16
    assert last["totals"]["foreign_changes"] == 0
