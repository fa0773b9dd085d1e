"""What is said of loops: conditions, sums, and how often."""

from __future__ import annotations

from typing import Any

from slicepilot.cluster.client.errors import ApiError, BackOff, retry_after_s
from slicepilot.cluster.loops.manager import LoopState
from slicepilot.cluster.loops.reading import LoopFigures, SliceFigures
from slicepilot.cluster.plan.plan import Planner
from slicepilot.cluster.resources.pod import Pod
from slicepilot.cluster.status.conditions import Condition, documents
from slicepilot.cluster.status.events import transitions
from slicepilot.cluster.status.report import Report, report
from slicepilot.cluster.status.summary import summed

from .documents import pod_document, set_document


def figures(mode: str = "live", *, kept: bool = True, **more: Any) -> LoopFigures:
    knobs = {"cpu_limit_mcpu": None, "nice": -5.0, "egress_mbps": 12.345}
    item = SliceFigures("a", True, kept, 100, 10.0, 9.876, 1.2345, knobs, "policy", safe=False)
    return LoopFigures(mode, (), "queue-greedy", more.get("stale", False), more.get("unmeasured", ()), (item,))


def reported(state: LoopState | None, **spec: Any) -> Report:
    [plan] = Planner().plan([set_document(**spec)], [Pod.of(pod_document())], {}, 0.0)
    return report(plan, state)


def states(of: Report) -> list[tuple[str, str, str]]:
    return [item.state for item in of.conditions]


def test_a_loop_that_runs_is_reported_with_its_slices() -> None:
    lines = reported(LoopState(figures=figures()))
    assert states(lines) == [
        ("Ready", "True", "LoopRunning"),
        ("Controlled", "True", "Live"),
        ("Degraded", "False", "AsDeclared"),
    ]
    assert lines.body["kept"] == "1/1"
    [item] = lines.body["slices"]
    assert (item["pod"], item["p99Ms"], item["inCharge"], item["promiseKept"]) == ("upf-a-0", 1.23, "policy", True)
    assert item["knobs"] == {"nice": -5, "egressMbps": 12.3}  # a limit that is not there is left out


def test_what_is_wrong_has_a_reason() -> None:
    assert states(reported(None))[0] == ("Ready", "False", "LoopStarting")
    failed = reported(LoopState(failure="no BPF"))
    assert states(failed)[0] == ("Ready", "False", "LoopFailed")
    assert states(failed)[2] == ("Degraded", "True", "LoopFailed")
    assert states(reported(LoopState(figures=figures("shadow"))))[1] == ("Controlled", "False", "Shadow")
    assert states(reported(LoopState(figures=figures(stale=True))))[0] == ("Ready", "False", "LoopSilent")
    unmeasured = reported(LoopState(figures=figures(unmeasured=("a: no interface n6",))))
    assert states(unmeasured)[2] == ("Degraded", "True", "NotMeasured")
    assert states(reported(None, policy={"agent": "nobody"}))[0] == ("Ready", "False", "Invalid")
    bundle = {"bundle": {"configMap": {"name": "b", "digest": "0" * 64}}}
    assert states(reported(None, policy=bundle))[0] == ("Ready", "False", "Fetching")


def test_a_condition_is_as_old_as_its_status() -> None:
    old = documents([Condition("Ready", "False", "LoopStarting")], [], 1, "t1")
    same = documents([Condition("Ready", "False", "LoopFailed", "two\nlines")], old, 2, "t2")
    assert (same[0]["lastTransitionTime"], same[0]["message"], same[0]["observedGeneration"]) == ("t1", "two lines", 2)
    assert documents([Condition("Ready", "True", "LoopRunning")], same, 2, "t3")[0]["lastTransitionTime"] == "t3"
    assert transitions([Condition("Ready", "False", "LoopFailed")], old)
    assert not transitions([Condition("Ready", "False", "LoopFailed", "another line")], same)


def node(name: str, kept: int, slices: int, conditions: dict[str, str]) -> dict[str, Any]:
    result = [
        {"type": kind, "status": lines.partition(" ")[0], "reason": lines.partition(" ")[2], "message": "why"}
        for kind, lines in conditions.items()
    ]
    status = {
        "observedGeneration": 1,
        "keptSlices": kept,
        "slices": [{"name": str(number)} for number in range(slices)],
        "conditions": result,
    }
    return {"spec": {"node": name, "sliceSet": "video"}, "status": status}


def test_sums_over_nodes() -> None:
    well = {"Ready": "True LoopRunning", "Degraded": "False AsDeclared"}
    body, conditions = summed(set_document(), [node("n1", 5, 5, well), node("n2", 3, 4, well)])
    assert body == {"nodes": 2, "slices": 9, "kept": "8/9"}
    assert [item.state for item in conditions] == [
        ("Ready", "True", "LoopsRunning"),
        ("Degraded", "False", "AsDeclared"),
    ]
    ill = {"Ready": "False LoopFailed", "Degraded": "True LoopFailed"}
    body, conditions = summed(set_document(), [node("n1", 5, 5, well), node("n2", 0, 4, ill)])
    assert [item.state for item in conditions] == [("Ready", "False", "LoopFailed"), ("Degraded", "True", "LoopFailed")]
    assert conditions[0].message == "n2: why"
    edited = set_document()
    edited["metadata"]["generation"] = 2
    assert summed(edited, [node("n1", 5, 5, well)])[1][0].state == ("Ready", "False", "Behind")
    body, conditions = summed(set_document(), [])
    assert (body["kept"], conditions[0].reason) == ("0/0", "NoNodes")
    many = [node(f"n{number}", 0, 1, ill) for number in range(9)]
    assert summed(set_document(), many)[1][0].message.endswith("; and 6 more nodes")


def test_waits_grow_differ_and_are_never_shorter_than_retry_after() -> None:
    most, least = BackOff(0.5, 30.0, lambda: 1.0), BackOff(0.5, 30.0, lambda: 0.0)
    assert [most.failed() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert [least.failed() for _ in range(3)] == [0.25, 0.5, 1]
    assert most.failed(ApiError(429, "slow down", 45.0)) >= 45.0
    most.succeeded()
    assert most.failed() == 0.5
    assert (retry_after_s("7"), retry_after_s(None), retry_after_s("Wed, 21 Oct 2026 07:28:00 GMT")) == (7, None, None)
    assert retry_after_s("99999999") == 600


def test_a_mode_that_is_not_allowed_is_reported_with_the_mode_instead() -> None:
    [plan] = Planner("shadow").plan([set_document(mode="live")], [Pod.of(pod_document())], {}, 0.0)
    lines = report(plan, LoopState(figures=figures("shadow")))
    assert states(lines)[1:] == [("Controlled", "False", "ModeNotAllowed"), ("Degraded", "True", "ModeNotAllowed")]
    message = "mode live is declared; this node's agent allows shadow at most (--highest-mode)"
    assert [item.message for item in lines.conditions[1:]] == [message, message]
    assert lines.body["mode"] == "shadow"
    allowed = report(Planner("live").plan([set_document(mode="live")], [Pod.of(pod_document())], {}, 0.0)[0], None)
    assert states(allowed)[2] == ("Degraded", "False", "AsDeclared")
