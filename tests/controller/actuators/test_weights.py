"""CPU weights: idle groups that have none, weights too small for all levels, and what a CPU request stands for."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np
import pytest

from slicepilot.controller.actuators.node import NodeActuator, SliceTargets
from slicepilot.controller.actuators.weight import (
    GroupWeight,
    WeightScale,
    linear_weight,
    quadratic_weight,
    shares_of_request,
    weight_of_request,
)
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.kernel_file import KernelFile
from slicepilot.controller.watchdog.external_change import ExternalChangeConfig, ExternalChangeWatch
from slicepilot.controller.watchdog.journal import Journal
from slicepilot.controller.watchdog.keeper import survey
from slicepilot.controller.watchdog.restore import restore
from slicepilot.env.knobs import KnobName

from .test_actuators import knobs, weight
from .v2_files import V2Files, v2_files_of

__all__ = ["v2_files_of"]


@pytest.fixture(params=["kernel", "v2"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    """Two groups."""
    if request.param == "kernel":
        groups: list[Path] = request.getfixturevalue("groups")[:2]
        if not (groups[0] / "cpu.idle").exists():
            pytest.skip("this kernel has no cpu.idle")
        return groups
    files: V2Files = request.getfixturevalue("v2_files")
    return [files.group(tmp_path / name) for name in ("one", "two")]


def set_idle(group: Path, value: int) -> None:
    """By the kernel, which the folder of files stands for."""
    with contextlib.closing(KernelFile(group / "cpu.idle")) as file:
        file.write(b"%d" % value)


# -- idle groups -----------------------------------------------------------------------------------------------------


def test_an_idle_group_keeps_its_own_nice_from_moving_and_nothing_else(pair: list[Path]) -> None:
    """runc#4143, systemd#23299: the kernel refuses weights of such a group; no slice started with an agent's requests,
    and every tick had an error without."""
    set_idle(pair[1], 1)
    before = weight(pair[1])
    with NodeActuator([SliceTargets("a", pair[0]), SliceTargets("b", pair[1])]) as node:
        node.deploy(np.array([900.0, 100.0], np.float32))
        receipt = node.apply(knobs([500.0, 400.0], [-5.0, -5.0]))
        assert receipt.error is None
        assert receipt.applied.nice[:, 0].tolist() == [-5.0, 0.0]
        assert receipt.applied.cpu_limit_mcpu[:, 0].tolist() == [500.0, 400.0]
        assert [slice_ for slice_, _ in node.not_moved] == ["b"]
        [note] = node.refresh()
        assert note.startswith("b: nice does not move: ")
        assert "cpu.idle is 1" in note
        assert not node.powerless
        assert node.deviations() == []
    assert weight(pair[1]) == before


@pytest.mark.parametrize("policy", ["respect", "reassert"])
def test_a_group_made_idle_during_a_run_is_left_to_who_did_it(pair: list[Path], policy: str) -> None:
    targets = [SliceTargets("a", pair[0]), SliceTargets("b", pair[1])]
    journal = Journal.of(survey(targets), os.getpid())
    with NodeActuator(targets) as node:
        config = ExternalChangeConfig("respect" if policy == "respect" else "reassert")
        watch = ExternalChangeWatch(node, config)
        assert node.apply(knobs([500.0, 500.0], [-5.0, -5.0])).error is None
        set_idle(pair[1], 1)
        receipt = node.apply(knobs([500.0, 500.0], [-6.0, -6.0]))
        assert receipt.error is not None
        assert "b: " in receipt.error
        assert node.apply(knobs([400.0, 300.0], [-7.0, -7.0])).error is None, "not tried again at each tick"
        [change] = watch.look(0)
        assert (change.slice, change.knob, change.policy) == ("b", "nice", "respect")
        assert "cpu.idle is 1" in change.text
        receipt = node.apply(knobs([400.0, 350.0], [-8.0, -8.0]))
        assert receipt.error is None
        assert receipt.applied.nice[0, 0] == -8.0
        assert watch.look(1) == []
        report = restore(journal)
        assert report.failed == []
        assert any("is not put back" in note for note in report.notes)
    assert (pair[1] / "cpu.idle").read_text().strip() == "1", "nothing was undone, and nothing failed"


def test_the_journal_has_no_weight_of_an_idle_group(pair: list[Path]) -> None:
    """Version 2 shows 0, which cannot be written back."""
    set_idle(pair[1], 1)
    journal = Journal.of(survey([SliceTargets("b", pair[1])]), os.getpid())
    set_idle(pair[1], 0)
    assert restore(Journal.parse(journal.dump(), "j")).failed == []


def test_where_nothing_moves_nobody_is_in_charge(pair: list[Path]) -> None:
    set_idle(pair[0], 1)
    left: frozenset[KnobName] = frozenset({"cpu_limit_mcpu", "egress_mbps"})
    with NodeActuator([SliceTargets("a", pair[0], left=left)]) as node:
        assert node.powerless
        node.refresh()
        assert node.powerless
    with NodeActuator([SliceTargets("a", pair[0], left=left), SliceTargets("b", pair[1], left=left)]) as node:
        assert not node.powerless
        set_idle(pair[1], 1)
        node.apply(knobs([500.0, 500.0], [3.0, 3.0]))
        assert node.powerless, "the last knob was refused"


# -- small weights ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "distinct", "at_19"), [(1, 18, 0), (4, 24, 5), (39, 34, 15), (59, 36, 17), (100, 40, 19)]
)
def test_levels_that_a_weight_cannot_tell_apart_are_rounded(
    v2_files: V2Files, tmp_path: Path, base: int, distinct: int, at_19: int
) -> None:
    group = v2_files.group(tmp_path / "group")
    v2_files.write(group / "cpu.weight", str(base))
    knob = GroupWeight(CpuGroup.at(group))
    held: dict[int, int] = {}
    for nice in range(-20, 20):
        level = knob.set(nice)
        assert level == knob.set(level)
        assert knob.deviation() is None
        held[level] = weight(group)
        assert knob.read() == level
    assert knob.set(19) == at_19
    assert len(held) == distinct
    if base != 100:
        assert len(set(held.values())) == distinct, "a level that is said to hold has a weight of its own"


def test_a_receipt_says_which_level_holds(v2_files: V2Files, tmp_path: Path) -> None:
    group = v2_files.group(tmp_path / "group")
    v2_files.write(group / "cpu.weight", "1")
    with NodeActuator([SliceTargets("a", group)]) as node:
        assert node.apply(knobs([500.0], [19.0])).applied.nice[0, 0] == 0.0
        assert node.apply(knobs([500.0], [-10.0])).applied.nice[0, 0] == -10.0


def test_runs_of_the_same_weight() -> None:
    assert WeightScale(2, 1).same(-5, 19) == [range(-4, -1), range(-1, 20)]
    assert WeightScale(2, 1).same(0, 19) == [range(20)]
    assert WeightScale(1, 1024).same(-20, 19) == []
    assert WeightScale(1, 256).same(10, 19) == [range(18, 20)]


# -- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_mcpu", "linear", "quadratic"),
    [(0, 1, 1), (10, 1, 4), (100, 4, 17), (250, 10, 35), (500, 20, 59), (1000, 39, 100), (4000, 157, 303)],
)
def test_both_formulas_of_runc(
    v2_files: V2Files, tmp_path: Path, request_mcpu: float, linear: int, quadratic: int
) -> None:
    """runc#4772, kubernetes#131216: before and from 1.3.2 on."""
    shares = shares_of_request(request_mcpu)
    assert (linear_weight(shares), quadratic_weight(shares)) == (linear, quadratic)
    for formula, expected in ((linear_weight, linear), (quadratic_weight, quadratic)):
        group = v2_files.group(tmp_path / formula.__name__)
        v2_files.write(group / "cpu.weight", str(formula(shares_of_request(2000))))
        knob = GroupWeight(CpuGroup.at(group), request_mcpu=2000)
        knob.deploy(request_mcpu)
        assert weight(group) == expected, "by the formula that its own weight was made by"
        knob.restore()
        assert weight(group) == formula(shares_of_request(2000))


@pytest.mark.parametrize(("formula", "cpu"), [(linear_weight, 39), (quadratic_weight, 100)])
def test_a_pod_of_unknown_request_follows_the_kubelets_formula(
    v2_files: V2Files, tmp_path: Path, formula: object, cpu: int
) -> None:
    assert callable(formula)
    root = v2_files.group(tmp_path / "kubepods.slice")
    allocatable = 0.9e3 * (os.cpu_count() or 1)
    v2_files.write(root / "cpu.weight", str(formula(shares_of_request(allocatable))))
    group = v2_files.group(root / "kubepods-pod1.slice")
    assert weight_of_request(CpuGroup.at(group), 1000, original=100) == cpu


def test_beside_services_a_cpu_is_their_default_weight(v2_files: V2Files, tmp_path: Path) -> None:
    """1 CPU gave 39 where the groups beside have 100."""
    assert weight_of_request(CpuGroup.at(v2_files.group(tmp_path / "upf.service")), 1000, original=100) == 100
