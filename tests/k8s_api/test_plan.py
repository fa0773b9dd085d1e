"""Which pods are whose, and what follows for loops."""

from __future__ import annotations

from typing import Any

from slicepilot.cluster.plan.assignment import AWAY_S
from slicepilot.cluster.plan.plan import LoopPlan, Planner, SetPlan
from slicepilot.cluster.resources.pod import Pod

from .documents import pod_document, set_document, slice_document

A, B = pod_document(), pod_document("upf-b-0", "b")
WAITING = {"status": {"containerStatuses": [{"name": "upf", "state": {"waiting": {}}}]}}


def planned(planner: Planner, sets: list[Any], pods: list[Any], now_s: float = 0.0) -> dict[str, SetPlan]:
    """By the SliceSet's name."""
    plans = planner.plan(sets, [Pod.of(item) for item in pods], {"zone": "edge"}, now_s)
    return {plan.identity.name: plan for plan in plans}


def loop_of(planner: Planner, sets: list[Any], pods: list[Any]) -> LoopPlan:
    """The loop of the SliceSet video."""
    loop = planned(planner, sets, pods)["video"].loop
    assert loop is not None
    return loop


def test_a_slice_set_becomes_a_loop_of_the_slices_that_have_pods_here() -> None:
    plan = planned(Planner(), [set_document(mode="canary", canary=["b", "a"])], [A])["video"]
    assert plan.loop is not None
    assert plan.loop.node["slices"][0]["upf"] == {
        "pod": {"name": "upf-a-0", "namespace": "core", "container": "upf"},
    }
    assert plan.loop.node["slices"][0]["cpu_request_mcpu"] == 250
    assert [item["name"] for item in plan.loop.node["slices"]] == ["a"]
    assert (plan.loop.mode, plan.loop.canary) == ("canary", ("a",))
    assert not plan.troubles
    assert not planned(Planner(), [set_document()], [])
    assert not planned(Planner(), [set_document(nodeSelector={"zone": "core"})], [A])
    assert planned(Planner(), [set_document(nodeSelector={"zone": "edge"})], [A])


def test_a_pod_is_weighed_by_all_its_requests_and_a_resize_starts_no_loop_anew() -> None:
    planner, sets = Planner(), [set_document(slices=[slice_document(container="upf")])]
    plan = loop_of(planner, sets, [with_containers(upf="250m", sidecar="100m")])
    assert plan.node["slices"][0]["cpu_request_mcpu"] == 350
    resized = loop_of(planner, sets, [with_containers(upf="900m", sidecar="100m")])
    assert plan.starts_as(resized)
    anew = loop_of(Planner(), sets, [with_containers(upf="900m", sidecar="100m")])
    assert anew.node["slices"][0]["cpu_request_mcpu"] == 1000


def with_containers(**requests: str) -> dict[str, Any]:
    """The pod of slice a, with these in it."""
    containers = [{"name": name, "resources": {"requests": {"cpu": cpu}}} for name, cpu in requests.items()]
    states = [{"name": name, "state": {"running": {}}} for name in requests]
    return {**A, "spec": {**A["spec"], "containers": containers}, "status": {"containerStatuses": states}}


def test_a_canary_that_is_elsewhere_is_a_shadow_here() -> None:
    plan = planned(Planner(), [set_document(mode="canary", canary=["b"])], [A])["video"]
    assert plan.loop is not None
    assert (plan.loop.mode, plan.loop.canary) == ("shadow", ())


def test_pods_of_other_namespaces_are_nobodys_business() -> None:
    """Whatever a selector says: who may write SliceSets of a namespace reaches no pod of another."""
    assert not planned(Planner(), [set_document()], [pod_document(namespace="kube-system")])


def test_the_older_slice_set_has_the_pod() -> None:
    young = set_document("young", "2026-01-02T00:00:00Z")
    for sets in ([young, set_document()], [set_document(), young]):
        plans = planned(Planner(), sets, [A, B])
        assert set(plans["video"].pods) == {"a", "b"}
        assert plans["young"].loop is None
        assert [item.reason for item in plans["young"].troubles] == ["PodConflict"] * 2
        assert "belongs to the older SliceSet video" in plans["young"].troubles[0].message


def test_an_invalid_one_stops_nobody_and_claims_nothing() -> None:
    wrong = set_document("wrong", "2025-01-01T00:00:00Z", policy={"agent": "nobody"})
    broken: dict[str, Any] = {**set_document("broken"), "spec": {"slices": [{"name": 1}], "nodeSelector": 3}}
    plans = planned(Planner(), [wrong, broken, set_document()], [A, B])
    assert set(plans["video"].pods) == {"a", "b"}
    assert "unknown name 'nobody'" in str(plans["wrong"].invalid)
    assert "video" in planned(Planner(), [broken, set_document()], [A])


def test_two_slices_have_one_pod_only_where_both_say_what_is_theirs() -> None:
    both = {"matchLabels": {"slice": "a"}}
    slices = [slice_document(podSelector=both), slice_document("b", "000002", podSelector=both)]
    plan = planned(Planner(), [set_document(slices=slices)], [A])["video"]
    assert set(plan.pods) == {"a"}
    assert plan.troubles[0].reason == "PodConflict"
    shared = [item | {"traffic": {"uePools": [f"10.{number}.0.0/16"]}} for number, item in enumerate(slices, 45)]
    assert set(planned(Planner(), [set_document(slices=shared)], [A])["video"].pods) == {"a", "b"}


def test_two_pods_of_a_slice_are_not_guessed_about_and_do_not_end_what_runs() -> None:
    second = pod_document("upf-a-1")
    plan = planned(Planner(), [set_document()], [A, second])["video"]
    assert plan.loop is None
    assert plan.troubles[0].reason == "PodAmbiguous"
    assert "upf-a-0, upf-a-1" in plan.troubles[0].message
    planner = Planner()
    planned(planner, [set_document()], [A])
    plan = planned(planner, [set_document()], [second, A])["video"]
    assert plan.pods["a"].pod.name == "upf-a-0"
    assert plan.troubles[0].reason == "PodAmbiguous"


def test_a_pod_that_restarts_keeps_its_slice_for_a_while() -> None:
    """The next pod of a StatefulSet has the name: the loop finds it, and is not started again."""
    planner = Planner()
    before = loop_of(planner, [set_document()], [A, B])
    away = planned(planner, [set_document()], [B], 10.0)["video"]
    assert away.loop == before
    assert away.troubles[0].reason == "PodAway"
    again = planned(planner, [set_document()], [A | {"metadata": A["metadata"] | {"uid": "other"}}, B], 20.0)["video"]
    assert again.loop == before
    assert not again.troubles
    planned(planner, [set_document()], [B], 30.0)
    gone = planned(planner, [set_document()], [B], 30.0 + AWAY_S)["video"]
    assert set(gone.pods) == {"b"}


def test_a_pod_of_a_deployment_is_known_by_its_uid() -> None:
    planner, mine = Planner(), pod_document("upf-7d9-x1", ownerReferences=[{"kind": "ReplicaSet", "controller": True}])
    loop = loop_of(planner, [set_document()], [mine])
    assert loop.node["slices"][0]["upf"]["pod"]["uid"] == "uid-upf-7d9-x1"
    assert not planned(planner, [set_document()], [], 1.0)
    ending = mine | {"metadata": mine["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert not planned(planner, [set_document()], [ending], 2.0)


def test_a_container_that_does_not_run_or_is_missing_is_reported() -> None:
    plan = planned(Planner(), [set_document()], [A | WAITING])["video"]
    assert (plan.loop, plan.troubles[0].reason) == (None, "PodNotRunning")
    slices = [slice_document(container="sidecar")]
    plan = planned(Planner(), [set_document(slices=slices)], [A])["video"]
    assert plan.troubles[0].reason == "ContainerMissing"
    assert "container = sidecar: expected one of upf" in plan.troubles[0].message


def test_what_can_be_ordered_needs_no_new_loop() -> None:
    shadow = loop_of(Planner(), [set_document()], [A])
    live = loop_of(Planner(), [set_document(mode="live")], [A])
    faster = loop_of(Planner(), [set_document(periodMs=5)], [A])
    assert shadow.starts_as(live)
    assert not shadow.acts_as(live)
    assert not shadow.starts_as(faster)


def test_a_mode_that_is_not_allowed_becomes_shadow_and_is_reported() -> None:
    canary = {"mode": "canary", "canary": ["a"]}
    allowed = {
        ("shadow", "shadow"): "shadow",
        ("shadow", "canary"): None,
        ("shadow", "live"): None,
        ("canary", "shadow"): "shadow",
        ("canary", "canary"): "canary",
        ("canary", "live"): None,
        ("live", "canary"): "canary",
        ("live", "live"): "live",
    }
    for (highest, mode), expected in allowed.items():
        spec = canary if mode == "canary" else {"mode": mode}
        plan = planned(Planner(highest), [set_document(**spec)], [A])["video"]
        assert plan.loop is not None
        assert plan.loop.mode == (expected or "shadow")
        assert bool(plan.loop.canary) == (plan.loop.mode == "canary")
        refusal = f"mode {mode} is declared; this node's agent allows {highest} at most (--highest-mode)"
        assert plan.refused_mode == (None if expected else refusal)
    asks = loop_of(Planner("shadow"), [set_document(mode="live")], [A])
    watches = loop_of(Planner("shadow"), [set_document()], [A])
    assert asks.starts_as(watches)
    assert asks.acts_as(watches)
