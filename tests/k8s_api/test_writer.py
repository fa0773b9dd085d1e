"""An agent's objects: when they are written, and that a flood of them holds up nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from slicepilot.cluster.client.errors import ApiError
from slicepilot.cluster.resources.names import MOST_INSTANCE, MOST_NAME, instance, node_slice_set
from slicepilot.cluster.resources.slice_set import Identity
from slicepilot.cluster.status.conditions import Condition
from slicepilot.cluster.status.events import Events
from slicepilot.cluster.status.report import Report
from slicepilot.cluster.status.status_writer import STEP_S, StatusWriter

from .server import Answer, serving

REPORT = Report((Condition("Ready", "True", "LoopRunning"),), {"kept": "1/1"}, ())


def posted(count: int) -> dict[str, tuple[Identity, Report]]:
    return {f"u{number}": (Identity(f"set-{number}", "core", f"u{number}", 1), REPORT) for number in range(count)}


def test_a_flood_of_objects_is_written_by_and_by_and_every_one_in_its_turn(tmp_path: Path) -> None:
    """The node's Lease is renewed by the same thread: a step takes a second, however slow the server is."""

    def slow(method: str, path: str, _: dict[str, str], __: Any) -> Answer:
        if method == "PATCH" and path.endswith("/status"):
            time.sleep(0.2)
        return 200, {}, [{"items": []}]

    with serving(tmp_path, slow) as (api, server):
        writer = StatusWriter(api, "edge-1", Events(api, "edge-1"))
        writer.post(posted(20))
        steps = 0
        while len({path for method, path, *_ in server.requests if path.endswith("/status")}) < 20:
            began_s = time.monotonic()
            writer.step(began_s)
            assert time.monotonic() - began_s < STEP_S + 1.0
            steps += 1
            assert steps < 20
        assert steps >= 3
        written = [path for _, path, *_ in server.requests if path.endswith("/status")]
        assert len(written) == 20, "none twice before all have been written once"


def test_what_cannot_be_removed_is_not_tried_again_at_once(tmp_path: Path) -> None:
    def refusing(method: str, *_: Any) -> Answer:
        return (403, {}, [{"message": "no"}]) if method == "DELETE" else (200, {}, [{"items": []}])

    with serving(tmp_path, refusing) as (api, server):
        writer = StatusWriter(api, "edge-1", Events(api, "edge-1"))
        writer.post(posted(1))
        writer.step(0.0)
        writer.post({})
        with pytest.raises(ApiError):
            writer.step(0.0)
        for moment in range(1, 100):
            writer.step(moment / 1000)
        assert [method for method, *_ in server.requests].count("DELETE") == 1
        with pytest.raises(ApiError):
            writer.step(3600.0)


def test_objects_of_an_earlier_agent_stay_until_it_is_known_which_are_wanted(tmp_path: Path) -> None:
    """The writer runs before the first plan: an agent that restarts reads lists first."""
    ready = {"type": "Ready", "status": "True", "reason": "LoopRunning", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    items = [
        {
            "metadata": {"name": f"set-{n}.edge-1", "namespace": "core", "ownerReferences": [{"uid": f"u{n}"}]},
            "spec": {"node": "edge-1", "sliceSet": f"set-{n}"},
            "status": {"conditions": [ready]},
        }
        for n in range(2)
    ]
    sent: list[Any] = []

    def answer(method: str, path: str, _: dict[str, str], body: Any) -> Answer:
        sent.append((method, path.rpartition("/nodeslicesets/")[2], body))
        return 200, {}, [{"items": items}]

    with serving(tmp_path, answer) as (api, _):
        writer = StatusWriter(api, "edge-1", Events(api, "edge-1"))
        writer.step(0.0)
        assert not [path for method, path, _ in sent if method == "DELETE"]
        writer.post(posted(1))
        writer.step(1.0)
        assert [path for method, path, _ in sent if method == "DELETE"] == ["set-1.edge-1"]
        [status] = [body["status"] for _, path, body in sent if path == "set-0.edge-1/status"]
        assert status["conditions"][0]["lastTransitionTime"] == ready["lastTransitionTime"]


def test_no_two_objects_and_no_two_loops_have_one_name() -> None:
    assert node_slice_set("video", "edge-1.example") == "video.edge-1.example"
    pairs = [
        ("a", "b.c"),
        ("a.b", "c"),
        ("a.b.c", "d"),
        ("a.b", "c.d"),
        ("a", "b.c.d"),
        ("a" * 253, "b"),
        ("a" * 253, "c"),
    ]
    names = [node_slice_set(*pair) for pair in pairs]
    assert len(set(names)) == len(pairs)
    assert max(map(len, names)) <= MOST_NAME
    loops = [instance("core", name) for name in ("a" * 100, "a" * 101, "a-" * 60)]
    assert len(set(loops)) == 3
    assert max(map(len, loops)) <= MOST_INSTANCE
