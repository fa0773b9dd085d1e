"""The cgroup of a pod: its limit follows its container's, its weight is the knob, both are restored."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slicepilot.configs import ConfigError
from slicepilot.controller.actuators.bandwidth import limit_mcpu
from slicepilot.controller.actuators.node import NodeActuator, SliceTargets
from slicepilot.controller.actuators.quota import CpuQuota
from slicepilot.controller.actuators.weight import GroupWeight
from slicepilot.controller.service.knob_lease import groups_to_lock
from slicepilot.controller.system.cgroup import CpuGroup, CpuHierarchy
from slicepilot.controller.watchdog.journal import Journal
from slicepilot.controller.watchdog.keeper import survey
from slicepilot.controller.watchdog.lock import Locks
from slicepilot.controller.watchdog.restore import restore

from .test_actuators import knobs, weight


@pytest.fixture(name="pod")
def _pod(groups: list[Path], hierarchy: CpuHierarchy) -> Iterator[Path]:
    """A container's group in a pod's, with a sidecar: 500 mCPU and 200 mCPU, and so 700 for both."""
    if hierarchy.version == 2:
        (groups[0] / "cgroup.subtree_control").write_text("+cpu")
    CpuQuota(CpuGroup.at(groups[0])).set(700.0)
    for name, limit in (("upf", 500.0), ("sidecar", 200.0)):
        (groups[0] / name).mkdir()
        CpuQuota(CpuGroup.at(groups[0] / name)).set(limit)
    try:
        yield groups[0] / "upf"
    finally:
        for name in ("upf", "sidecar"):
            (groups[0] / name).rmdir()


def limits(container: Path) -> list[float]:
    """Of a container and its pod."""
    return [limit_mcpu(CpuGroup.at(path)) for path in (container, container.parent)]


def test_a_pod_is_as_wide_as_its_container_needs_it_and_no_wider_than_at_first_else(pod: Path) -> None:
    with NodeActuator([SliceTargets("a", pod, moves_pod=True)], 10_000) as node:
        for wanted, above in ((800.0, 1000.0), (300.0, 700.0), (900.0, 1100.0), (math.inf, math.inf), (600.0, 800.0)):
            receipt = node.apply(knobs([wanted], [0.0]))
            assert receipt.error is None, "the kernel refuses none of the steps in between"
            assert limits(pod) == pytest.approx([wanted, above])
            assert node.deviations() == []
            time.sleep(0.25)  # writes are rationed
        CpuQuota(CpuGroup.at(pod.parent)).set(650.0)
        [report] = node.deviations()
        assert "for its pod" in report.text
        node.reassert("a", "cpu_limit_mcpu")
        assert limits(pod) == pytest.approx([600.0, 800.0])
    assert limits(pod) == [500.0, 700.0]


def test_what_others_have_set_since_is_put_back_where_that_is_wanted(pod: Path) -> None:
    """A kubelet that has resized a pod amid a run: pod first where it widens, container first where it narrows."""
    target = SliceTargets("a", pod, moves_pod=True, weighs_pod=True)
    journal = Journal.of(survey([target]), os.getpid())
    with NodeActuator([target]) as node:
        node.apply(knobs([400.0], [-10.0]))
        for container, above, shares in ((200.0, 400.0, 30), (800.0, 1000.0, 60)):
            # From another quota than its own: the kernel refuses none of the steps.
            for path, limit in ((pod, 100.0), (pod.parent, above), (pod, container)):
                CpuQuota(CpuGroup.at(path)).set(limit)
            name = "cpu.shares" if (pod / "cpu.shares").exists() else "cpu.weight"
            (pod.parent / name).write_text(str(shares))
            for knob in ("cpu_limit_mcpu", "nice"):
                node.reassert("a", knob, newest=True)
            assert limits(pod)[0] == 400.0
            result = node.original_cpu("a")
            since = journal.with_cpu("a", result.quota, result.pod_quota, result.weight)
            assert Journal.parse(since.dump(), "j") == since
    assert (limits(pod), weight(pod.parent)) == ([800.0, 1000.0], 60)
    CpuQuota(CpuGroup.at(pod)).set(100.0)
    CpuQuota(CpuGroup.at(pod.parent)).set(300.0)
    assert restore(since).failed == []
    assert (limits(pod), weight(pod.parent)) == ([800.0, 1000.0], 60), "its pod is widened first"


def test_a_resize_to_what_the_loop_has_set_is_known_by_its_pod(pod: Path) -> None:
    """The container has what it had: only its pod's limit tells that somebody has declared another."""
    CpuQuota(CpuGroup.at(pod.parent / "sidecar")).set(100.0)
    with NodeActuator([SliceTargets("a", pod, moves_pod=True)]) as node:
        node.apply(knobs([400.0], [0.0]))
        CpuQuota(CpuGroup.at(pod.parent)).set(400.0)
        [report] = node.deviations()
        assert "for its pod" in report.text
        node.reassert("a", "cpu_limit_mcpu", newest=True)
        assert limits(pod) == [400.0, 700.0]
        assert node.deviations() == []
    assert limits(pod) == [400.0, 400.0], "and not 500 again, which its pod has not any more"


@pytest.mark.parametrize("journalled", [True, False])
def test_what_the_kernel_refuses_since_others_have_changed_it_holds_up_nothing(
    pod: Path, hierarchy: CpuHierarchy, journalled: bool
) -> None:
    """Somebody has given the pod and another container in it more than they had at first."""
    if hierarchy.version == 2:
        pytest.skip("version 2 takes any limit, and the least of those above holds")
    target = SliceTargets("a", pod, moves_pod=True)
    journal = Journal.of(survey([target]), os.getpid())
    node = NodeActuator([target])
    node.apply(knobs([300.0], [0.0]))
    CpuQuota(CpuGroup.at(pod.parent / "sidecar")).set(100.0)
    CpuQuota(CpuGroup.at(pod.parent)).set(2000.0)
    CpuQuota(CpuGroup.at(pod.parent / "sidecar")).set(900.0)
    if journalled:
        report = restore(journal)
        assert report.failed == []
        assert report.notes == ["a: its pod's limit stays: a container was given more"]
        assert report.took_s < 0.7
    else:
        node.restore()
    assert limits(pod) == [500.0, 2000.0]
    node.close()
    for name in (pod.parent / "sidecar", pod, pod.parent):
        CpuQuota(CpuGroup.at(name)).set(100.0)
    if journalled:  # a pod that nothing is to be put back of
        [result] = journal.slices
        assert result.pod is not None
        kept = replace(journal, slices=(replace(result, pod=replace(result.pod, quota_us=10_000)),))
        assert restore(kept).failed == []
        assert limits(pod) == [100.0, 100.0], "as much as the pod has"


def test_a_pods_weight_is_moved_instead_of_its_containers(pod: Path) -> None:
    """A container's ranks it against the others of its pod alone."""
    target = SliceTargets("a", pod, weighs_pod=True)
    container, above, limit = weight(pod), weight(pod.parent), limits(pod)
    with NodeActuator([target]) as node:
        node.apply(knobs([400.0], [-10.0]))
        assert weight(pod) == container
        assert weight(pod.parent) > 5 * above
        assert limits(pod) == [400.0, limit[1]], "the pod's limit is not ours"
        GroupWeight(CpuGroup.at(pod.parent)).set(5)
        [report] = node.deviations()
        assert report.knob == "nice"
        assert report.text.startswith("weight ")
        node.reassert("a", "nice")
        assert weight(pod.parent) > 5 * above
    assert (weight(pod), weight(pod.parent), limits(pod)) == (container, above, limit)


def test_a_pods_weight_is_put_back_by_what_the_journal_says_and_its_limit_left_alone(pod: Path) -> None:
    target = SliceTargets("a", pod, weighs_pod=True)
    container, above = weight(pod), weight(pod.parent)
    journal = Journal.of(survey([target]), os.getpid())
    assert Journal.parse(journal.dump(), "j") == journal
    node = NodeActuator([target])
    node.apply(knobs([math.inf], [-10.0]))
    GroupWeight(CpuGroup.at(pod)).set(3)
    CpuQuota(CpuGroup.at(pod.parent)).set(math.inf)
    report = restore(journal)
    assert not report.failed
    assert weight(pod.parent) == above
    assert weight(pod) < container, "nor is the container's weight ours"
    assert limits(pod) == [500.0, math.inf]
    node.close()


def test_a_pod_has_its_own_again_when_its_container_is_started_again(pod: Path) -> None:
    """Its group is new then, the pod's is the same."""
    target = SliceTargets("a", pod, moves_pod=True, weighs_pod=True)
    above = weight(pod.parent)
    with NodeActuator([target]) as node:
        node.apply(knobs([900.0], [-10.0]))
        assert limits(pod) == [900.0, 1100.0]
        pod.rmdir()
        pod.mkdir()
        until_s = time.monotonic() + 5
        while node.refresh() and time.monotonic() < until_s:
            assert time.monotonic() < until_s
        assert limits(pod) == [math.inf, 700.0]
        assert weight(pod.parent) == above
        node.apply(knobs([400.0], [-5.0]))
        assert weight(pod.parent) > 2 * above
    assert weight(pod.parent) == above


def test_two_controllers_with_a_container_each_do_not_both_move_their_pods_weight(pod: Path) -> None:
    def of(container: str, weighs_pod: bool) -> dict[str, Path]:
        return groups_to_lock([SliceTargets(container, pod.parent / container, weighs_pod=weighs_pod)])

    with Locks(of("upf", True)):
        with pytest.raises(ConfigError, match="pod of slice sidecar"):
            Locks(of("sidecar", True), patience_s=0)
        Locks(of("sidecar", False)).close()
    Locks(of("sidecar", True)).close()
