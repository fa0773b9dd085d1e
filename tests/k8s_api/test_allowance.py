"""What the operator of a node allows, and what is left on it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from slicepilot.cluster.loops.leftovers import EVERY_S, KEPT, Leftovers
from slicepilot.cluster.plan.allowance import Admission, Allowance
from slicepilot.cluster.plan.plan import MOST_SETS, Planner, SetPlan
from slicepilot.cluster.resources.pod import Pod
from slicepilot.cluster.status.report import report
from slicepilot.controller.watchdog.journal import journal_path

from .documents import pod_document, set_document, slice_document


def a_set(number: int, namespace: str = "core", **more: Any) -> dict[str, Any]:
    """One with a slice of its own, the older the lower its number."""
    result = set_document(
        f"s{number:03}",
        f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z",
        slices=[slice_document(f"x{number}", **more)],
    )
    result["metadata"] |= {"namespace": namespace, "uid": f"uid-{namespace}-{number}"}
    return result


def a_pod(number: int, namespace: str = "core") -> Pod:
    return Pod.of(pod_document(f"upf-{number}-0", f"x{number}", namespace=namespace))


def planned(
    allowing: Admission, sets: list[Any], pods: list[Pod], planner: Planner | None = None
) -> dict[str, SetPlan]:
    result = (planner or Planner()).plan(sets, pods, {}, 0.0)
    return {plan.identity.uid: plan for plan in allowing.admit(result)}


def test_a_node_runs_so_many_loops_and_a_namespace_has_its_part_of_them() -> None:
    """Whoever may make pods and SliceSets in a namespace can have a loop for each pair of them."""
    allowing = Admission(Allowance(loops=3, loops_in_namespace=2))
    sets = [a_set(number) for number in range(4)] + [a_set(number, "other") for number in range(4, 6)]
    pods = [a_pod(number) for number in range(4)] + [a_pod(number, "other") for number in range(4, 6)]
    plans = planned(allowing, sets, pods)
    assert [uid for uid, plan in plans.items() if plan.loop] == ["uid-core-0", "uid-core-1", "uid-other-4"]
    crowded = plans["uid-core-2"]
    assert report(crowded, None).conditions[0].state == ("Ready", "False", "TooManyLoops")
    # What runs is not ended by an older request whose pod comes later.
    again = planned(allowing, sets[1:], pods)
    assert [uid for uid, plan in again.items() if plan.loop] == ["uid-core-1", "uid-core-2", "uid-other-4"]
    again = planned(allowing, sets, pods)
    assert [uid for uid, plan in again.items() if plan.loop] == ["uid-core-1", "uid-core-2", "uid-other-4"]


def test_limits_of_pods_are_exceeded_where_the_operator_allows_it_alone() -> None:
    sets, pods = [a_set(0, mayExceedLimit=True), a_set(1)], [a_pod(0), a_pod(1)]
    for allowed in (False, True):
        first, second = planned(Admission(Allowance(exceed_limit=allowed)), sets, pods).values()
        assert first.loop is not None
        assert first.loop.node["slices"][0]["may_exceed_limit"] == allowed
        assert [item.reason for item in first.troubles] == ([] if allowed else ["LimitKept"])
        assert not second.troubles


def test_a_slice_that_may_not_follow_may_exceed_its_limit_as_declared() -> None:
    follow = {"cpuLimitMcpu": {"low": 100, "high": 900}}
    for declares in (False, True):
        for allowed in (False, True):
            sets = [a_set(0, follow=follow, mayExceedLimit=declares)]
            [plan] = planned(Admission(Allowance(exceed_limit=allowed)), sets, [a_pod(0)]).values()
            assert plan.loop is not None
            [item] = plan.loop.node["slices"]
            assert "ceiling_mcpu" not in item
            assert item["may_exceed_limit"] == (declares and allowed)
            reasons = ["NotFollowed", *(["LimitKept"] if declares and not allowed else [])]
            assert [trouble.reason for trouble in plan.troubles] == reasons
    [plan] = planned(Admission(Allowance(follow=True)), [a_set(0, follow=follow)], [a_pod(0)]).values()
    assert plan.loop is not None
    assert (plan.loop.node["slices"][0]["ceiling_mcpu"], plan.loop.node["slices"][0]["may_exceed_limit"]) == (900, True)


def test_of_a_flood_of_slice_sets_the_oldest_are_looked_at() -> None:
    sets = [a_set(number) for number in reversed(range(1000))] + [a_set(0, "other"), a_set(1, "empty")]
    planner = Planner()
    plans = planned(Admission(Allowance()), sets, [a_pod(0), a_pod(999), a_pod(0, "other")], planner)
    assert set(plans) == {"uid-core-0", "uid-other-0"}
    assert len(planner._known) == MOST_SETS + 1


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    result = tmp_path / "run", tmp_path / "state"
    for root in result:
        root.mkdir()
    return result


def test_files_of_loops_that_have_gone_go_by_and_by(roots: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    left = Leftovers(folder, roots)
    names = [f"core.s{number:02}" for number in range(KEPT + 4)]
    for number, name in enumerate([*names, "mine"]):
        for root in roots:
            (root / name / "records").mkdir(parents=True)
        (folder / f"{name}.node.yaml").touch()
        if name != "mine":  # that of a controller which is no SliceSet's
            left.mark(name)
            os.utime(roots[1] / ".sliceset-loops" / name, ns=(number, number))
    journal_path(roots[1] / names[0]).touch()  # its knobs are still to be restored
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (roots[1] / names[1] / "records" / "link").symlink_to(outside)
    assert left.tidy({names[2]}, 0.0) == []
    assert {path.name for path in roots[0].iterdir()} == {names[0], names[2], "mine"}
    assert {path.name for path in roots[1].iterdir() if path.name[0] != "."} == {
        names[0],
        *names[2:3],
        *names[4:],
        "mine",
    }
    assert (outside / "precious").exists()
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}.node.yaml" for name in (names[2], "mine")]
    journal_path(roots[1] / names[0]).unlink()
    assert left.tidy(set(), EVERY_S / 2) == []
    assert (roots[0] / names[0]).exists(), "it looks once a minute"
    assert left.tidy(set(), EVERY_S) == []
    assert {path.name for path in roots[0].iterdir()} == {"mine"}
    assert len([path for path in roots[1].iterdir() if path.name[0] != "."]) == KEPT + 1
