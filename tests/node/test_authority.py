"""Which knobs act is said with a reason; what binds a UPF beside its own cgroup is named."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slicepilot.controller.actuators.quota import CpuQuota
from slicepilot.controller.actuators.slice_knobs import SliceTargets
from slicepilot.controller.system.cgroup import CpuGroup, CpuHierarchy
from slicepilot.controller.system.cgroup_paths import managers, pod_of
from slicepilot.controller.telemetry.points import NetPoint, SlicePoints
from slicepilot.node.authority.authority import authority, without
from slicepilot.node.authority.binding import surroundings
from slicepilot.node.check.load import Load
from slicepilot.node.find.locate import Located
from slicepilot.node.find.processes import Process

OWN = Path("/proc/self/ns/net")
POINTS = SlicePoints("a", NetPoint(OWN, "n3"), n6=NetPoint(OWN, "far"))


@contextlib.contextmanager
def cgroup(*names: str) -> Iterator[Path]:
    """A group in the hierarchy of the CPU controller, with those above it; made for the test."""
    hierarchy = CpuHierarchy.find()
    made = [hierarchy.root.joinpath(*names[: depth + 1]) for depth in range(len(names))]
    for path in made:
        path.mkdir()
        if hierarchy.version == 2:
            (path / "cgroup.subtree_control").write_text("+cpu")
    try:
        yield made[-1]
    finally:
        for path in reversed(made):
            path.rmdir()


def upf(program: str, group: Path | None, *others: Process) -> Located:
    process = Process(1, 0, 1, program[:15], 0, program, (program,), (("cpu", "/a"),), (1, 2))
    return Located(process, OWN, group, others)


def test_a_process_that_works_on_its_packets_feels_its_limits() -> None:
    with cgroup(f"sp-test-{os.getpid()}") as group:
        result = authority(SliceTargets("a", group, "lo", OWN), upf("open5gs-upfd", group), POINTS)
    assert without(result) == frozenset()
    assert "Open5GS forwards in its process" in result["cpu_limit_mcpu"].why


@pytest.mark.parametrize(
    ("program", "why"),
    [("eupf", "softirqs"), ("free5gc-upf", "softirqs"), ("bessd", "polls"), ("vpp_main", "polls")],
)
def test_one_that_does_not_feels_none(program: str, why: str) -> None:
    with cgroup(f"sp-test-{os.getpid()}") as group:
        result = authority(SliceTargets("a", group, "lo", OWN), upf(program, group), POINTS)
    assert without(result) == {"cpu_limit_mcpu", "nice"}
    assert why in result["nice"].why


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: real time")
@pytest.mark.parametrize(("policy", "moves"), [("fifo", False), ("rr", False), ("other", True)])
def test_a_process_in_real_time_feels_neither_limit_nor_weight(policy: str, moves: bool) -> None:
    """moby/moby#31411, siderolabs/pkgs#1484."""
    chrt = ["chrt", f"--{policy}", "0" if policy == "other" else "1"]
    with (
        cgroup(f"sp-test-{os.getpid()}") as group,
        subprocess.Popen(
            [*chrt, "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        located = upf("open5gs-upfd", group)
        located = replace(located, process=replace(located.process, pid=process.pid))
        result = authority(SliceTargets("a", group, "lo", OWN), located, POINTS)
        process.kill()
    assert without(result) == (frozenset() if moves else {"cpu_limit_mcpu", "nice"})
    assert ("runs in real time" in result["nice"].why) != moves


def test_a_group_that_others_are_in_is_left_alone() -> None:
    other = replace(upf("bash", None).process, pid=7)
    with cgroup(f"sp-test-{os.getpid()}") as group:
        result = authority(SliceTargets("a", group, "lo", OWN), upf("open5gs-upfd", group, other), POINTS)
    assert without(result) == {"cpu_limit_mcpu", "nice"}
    assert "bash (7)" in result["nice"].why


def test_what_is_not_there_does_not_act() -> None:
    result = authority(SliceTargets("a", None, None, OWN), upf("open5gs-upfd", None), POINTS)
    assert without(result) == {"cpu_limit_mcpu", "nice", "egress_mbps"}
    assert "not in a CPU cgroup of its own; set `own_cgroup: true`" in result["nice"].why


def test_a_shaper_behind_the_last_point_or_on_n3_is_none() -> None:
    with cgroup(f"sp-test-{os.getpid()}") as group:
        blind = replace(POINTS, n6=NetPoint(OWN, "lo", "egress"))
        result = authority(SliceTargets("a", group, "lo", OWN), upf("open5gs-upfd", group), blind)
        assert "after the last point" in result["egress_mbps"].why
        shared = replace(POINTS, n3=NetPoint(OWN, "lo"))
        result = authority(SliceTargets("a", group, "lo", OWN), upf("open5gs-upfd", group), shared)
        assert "N3 as well" in result["egress_mbps"].why


def test_limits_above_bind_and_so_do_cpus_that_it_may_not_use() -> None:
    name = f"sp-test-{os.getpid()}"
    with cgroup(name, "pods", "upf") as group:
        CpuQuota(CpuGroup.at(group.parent)).set(400.0)
        CpuQuota(CpuGroup.at(group.parent.parent)).set(900.0)
        command = [sys.executable, "-c", "import os, time; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "]
        command[-1] += "print(flush=True); time.sleep(60)"
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            around = surroundings(process.pid, group)
            without_pod = surroundings(process.pid, group, moves_pod=True)
            process.kill()
    assert without_pod.limit_mcpu == pytest.approx(900.0)
    assert around.limit_mcpu == pytest.approx(400.0)
    assert around.limited_by == group.parent
    assert around.cpus == 1
    assert around.usable == pytest.approx(0.4)


def test_a_packet_that_costs_its_process_nothing_is_handled_elsewhere() -> None:
    load = Load(1000, 1000, 1.0, 10.0, 10.0, 20.0, 50.0, 0.1, 0.1)
    assert load.elsewhere
    assert not replace(load, cpu_us_per_packet=2.0).elsewhere
    assert not replace(load, cpu_us_per_packet=None).elsewhere
    assert "none has left" in str(replace(load, left=0))


@pytest.mark.parametrize(
    ("path", "pod"),
    [
        ("kubepods/burstable/pod0b1d2c3e-0000-4aaa-8bbb-123456789abc/4f1e", True),
        ("kubepods/pod0b1d2c3e-0000-4aaa-8bbb-123456789abc/4f1e", True),
        (
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b1d2c3e_0000.slice/crio-4f1e.scope",
            True,
        ),
        ("kubepods.slice/kubepods-pod0b1d2c3e_0000.slice/crio-4f1e.scope", True),
        # A kubelet with --cgroup-root, as in kind (kubernetes/kubernetes#118371, #92175), by either driver.
        (
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable-pod66fef43a_13b1.slice/crio-4f1e.scope",
            True,
        ),
        (
            "container.slice/container-kubepods.slice/container-kubepods-pod66fef43a_13b1.slice/crio-4f1e.scope",
            True,
        ),
        ("kubelet/kubepods/burstable/pod66fef43a-13b1/4f1e", True),
        # A static pod's uid is a hash (netdata/netdata#4868).
        (
            "kubepods.slice/kubepods-burstable-pod03671a0313f5acf27bef3683009923f8.slice/cri-containerd-4f1e.scope",
            True,
        ),
        ("kubelet.slice/kubelet-kubepods-pod66fef43a.slice/crio-4f1e.scope", False),
        ("my-kubepods/pod66fef43a-13b1/4f1e", False),
        ("kubepods/burstable/4f1e", False),
        ("system.slice/pod1/upf", False),
        ("kubepods/podlike/4f1e", False),
    ],
)
def test_a_pods_group_is_known_by_where_the_kubelet_makes_it(tmp_path: Path, path: str, pod: bool) -> None:
    group = tmp_path / path
    group.mkdir(parents=True)
    assert pod_of(group) == (group.resolve().parent if pod else None)
    assert ("the kubelet" in managers(group)) >= pod
