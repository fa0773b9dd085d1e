"""What is reported of loops to the API server: when, how much of it, and what happens where others may write too."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slicepilot.cluster.client.errors import ApiError
from slicepilot.cluster.podsync.field_sync import MOST_REASSERTS, RETRY_REFUSED_S
from slicepilot.cluster.podsync.originals import FILE, OriginalsFile
from slicepilot.cluster.podsync.pod_sync import UNKNOWN_S, Followed, PodSync
from slicepilot.cluster.resources.pod import EGRESS_NOTE, PRIORITY_NOTE, Pod
from slicepilot.cluster.resources.quantities import bandwidth_text, cpu_text, mcpu
from slicepilot.cluster.resources.slice_set import Follow
from slicepilot.configs import FailureError

from .documents import pod_document
from .server import Answer, serving

KEY = ("uid-video", "a")
CPU = Follow(cpu_limit_mcpu=(200.0, 1500.0))


@dataclass
class Pods:
    """One pod as an API server keeps it, and the requests for it."""

    document: dict[str, Any]
    answer: int = 200
    requests: list[tuple[str, Any]] = field(default_factory=list)

    def script(self, method: str, path: str, _: dict[str, str], body: Any) -> Answer:
        self.requests.append((path.rpartition("/")[2], body))
        if self.answer != 200:
            return self.answer, {}, [{"message": "no"}]
        assert method == "PATCH"
        assert body["metadata"]["uid"] == self.document["metadata"]["uid"]
        for item in body.get("spec", {}).get("containers", ()):
            resources = self.document["spec"]["containers"][0]["resources"]
            for kind, values in item["resources"].items():
                resources.setdefault(kind, {}).update(values)
        notes = self.document["metadata"].setdefault("annotations", {})
        for key, value in body["metadata"].get("annotations", {}).items():
            notes.pop(key, None)
            if value is not None:
                notes[key] = value
        return 200, {}, [self.document]

    @property
    def limit(self) -> str:
        return str(self.document["spec"]["containers"][0]["resources"]["limits"]["cpu"])

    @limit.setter
    def limit(self, value: str) -> None:
        self.document["spec"]["containers"][0]["resources"]["limits"] = {"cpu": value}


class Rig:
    """A tier of which time goes by as the test says."""

    def __init__(self, pods: Pods, sync: PodSync) -> None:
        self.pods, self.sync, self.now_s = pods, sync, 1000.0

    def after(self, seconds: float, limit_mcpu: float | None = None, **more: Any) -> int:
        """So long after the last, with what the loop has set; how many requests came."""
        self.now_s += seconds
        pod = Pod.of(self.pods.document)
        follow = more.pop("follow", CPU)
        item = Followed(more.pop("generation", 1), pod, "upf", follow, limit_mcpu, more.pop("egress_mbps", None))
        self.sync.post({} if more.pop("ended", False) else {KEY: item}, [] if more.pop("gone", False) else [pod])
        before = len(self.pods.requests)
        with contextlib.suppress(ApiError):
            self.sync.step(self.now_s)
        return len(self.pods.requests) - before


@pytest.fixture(name="rig")
def _rig(tmp_path: Path) -> Iterator[Rig]:
    document = json.loads(json.dumps(pod_document()))
    document["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "1"}
    pods = Pods(document)
    with serving(tmp_path, pods.script) as (api, _):
        yield Rig(pods, PodSync(api, "edge-1", tmp_path))


def test_a_limit_follows_inside_its_range_no_more_often_than_it_may_and_comes_back(rig: Rig) -> None:
    assert rig.after(0, 1000.0) == 0, "it has that already"
    assert rig.after(1, 980.0) == 0, "hardly a change"
    assert rig.after(1, 600.0) == 1
    assert rig.pods.limit == "600m"
    assert rig.after(0.5, 1400.0) == 0, "too soon"
    assert rig.after(1.6, 1400.0) == 1
    assert rig.after(3, 5000.0) == 1
    assert rig.pods.limit == "1500m"
    assert rig.after(3, math.inf) == 0
    assert rig.after(3, 1.0) == 1
    assert rig.pods.limit == "250m", "not below its request"
    assert rig.after(3, None) == 0, "its loop says nothing: as it is"
    rig.pods.answer = 500
    rig.after(3, ended=True)
    assert rig.sync.restoring, "who ends now waits"
    rig.pods.answer = 200
    assert rig.after(3, ended=True) == 1
    assert rig.pods.limit == "1"
    assert not rig.sync.restoring
    assert rig.after(3, ended=True) == 0
    assert not rig.sync.troubles


def test_a_loop_that_says_nothing_for_long_is_not_waited_for(rig: Rig) -> None:
    rig.after(0, 600.0)
    assert rig.after(10, None) == 0
    assert rig.after(UNKNOWN_S + 1, None) == 1
    assert rig.pods.limit == "1"


def test_the_next_agent_gives_back_what_the_last_one_has_left(rig: Rig, tmp_path: Path) -> None:
    rig.after(0, 600.0)
    assert oct((tmp_path / FILE).stat().st_mode)[-3:] == "600"
    rig.sync = PodSync(rig.sync._api, "edge-1", tmp_path)
    assert rig.after(1, 700.0) == 1, "it goes on"
    rig.sync = PodSync(rig.sync._api, "edge-1", tmp_path)
    assert rig.after(1, ended=True) == 1
    assert rig.pods.limit == "1", "the first state"
    rig.after(3, ended=True)
    assert OriginalsFile(tmp_path).pods == {}


def test_nothing_is_given_back_to_a_pod_that_has_gone(rig: Rig, tmp_path: Path) -> None:
    rig.after(0, 600.0)
    assert rig.after(1, ended=True, gone=True) == 0
    assert OriginalsFile(tmp_path).pods == {}


def test_who_else_sets_it_has_it_until_the_slice_set_is_edited(rig: Rig, tmp_path: Path) -> None:
    rig.after(0, 600.0)
    rig.after(1, 600.0)
    rig.pods.limit = "800m"
    meta = rig.pods.document["metadata"]
    meta["managedFields"] = [{"manager": "vpa-updater", "subresource": "resize", "time": "2026-01-01T00:00:00Z"}]
    assert rig.after(3, 300.0) == 0
    assert rig.sync.troubles[KEY] == "vpa-updater has set 800m instead of 600m: left to them"
    assert OriginalsFile(tmp_path).pods == {} or OriginalsFile(tmp_path).pods["uid-upf-a-0"].empty
    assert rig.after(3, ended=True) == 0
    assert rig.pods.limit == "800m", "theirs, and not the first state"
    assert rig.after(3, 300.0, generation=2) == 1


def test_who_insists_has_it_in_the_end(rig: Rig) -> None:
    follow = Follow(cpu_limit_mcpu=(200.0, 1500.0), reassert=True)
    rig.after(0, 600.0, follow=follow)
    for _ in range(MOST_REASSERTS):
        rig.after(1, 600.0, follow=follow)
        rig.pods.limit = "610m"
        assert rig.after(2, 600.0, follow=follow) == 1, "however near it is"
        assert rig.pods.limit == "600m"
    rig.after(1, 600.0, follow=follow)
    rig.pods.limit = "610m"
    assert rig.after(2, 600.0, follow=follow) == 0
    assert "left to them" in rig.sync.troubles[KEY]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda item: item["resources"].pop("limits"), "it has no CPU limit, which a resize could not take away again"),
        (
            lambda item: item.update(resizePolicy=[{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]),
            "resizePolicy: another CPU limit would restart it (RestartContainer)",
        ),
    ],
)
def test_what_could_not_be_undone_or_would_restart_is_not_done(rig: Rig, change: Any, why: str) -> None:
    change(rig.pods.document["spec"]["containers"][0])
    assert rig.after(0, 600.0) == 0
    assert rig.sync.troubles[KEY] == why


def test_a_guaranteed_pod_stays_one(rig: Rig) -> None:
    rig.pods.document["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
    rig.pods.document["status"]["qosClass"] = "Guaranteed"
    assert rig.after(0, 600.0) == 1
    assert rig.pods.document["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "600m"},
        "requests": {"cpu": "600m"},
    }
    rig.after(3, ended=True)
    assert rig.pods.document["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "1000m"


def test_a_resize_that_can_never_be_is_taken_back(rig: Rig) -> None:
    """A static CPU manager says so."""
    rig.after(0, 600.0)
    condition = {"type": "PodResizePending", "status": "True", "reason": "Infeasible", "message": "static CPU manager"}
    rig.pods.document["status"]["conditions"] = [condition]
    assert rig.after(3, 700.0) == 1
    assert rig.pods.limit == "1"
    assert rig.sync.troubles[KEY] == "infeasible: static CPU manager"
    assert rig.after(10, 700.0) == 0
    rig.pods.document["status"]["conditions"] = [condition | {"reason": "Deferred", "message": "node is full"}]
    rig.after(60, 700.0)
    rig.after(1, 700.0)
    assert rig.sync.troubles[KEY] == "its resize waits: Deferred: node is full"


def test_a_resize_that_the_kubelet_fails_to_carry_out_is_reported(rig: Rig) -> None:
    """It is under way for ever (kubernetes/kubernetes#123441, #125559)."""
    rig.after(0, 600.0)
    condition = {"type": "PodResizeInProgress", "status": "True", "reason": "", "message": ""}
    rig.pods.document["status"]["conditions"] = [condition]
    rig.after(1, 600.0)
    assert not rig.sync.troubles, "an ordinary resize is no trouble"
    rig.pods.document["status"]["conditions"] = [
        condition | {"reason": "Error", "message": "cpu.max: invalid argument"}
    ]
    rig.after(1, 600.0)
    assert rig.sync.troubles[KEY] == "its resize fails: cpu.max: invalid argument"
    rig.pods.document["status"]["conditions"] = []
    rig.after(1, 600.0)
    assert not rig.sync.troubles


@pytest.mark.parametrize("limit", ["2e0", "2E+0", "20e-1", "2000000u", "2000000000n", "+2", "2.", "0.002k"])
def test_a_limit_in_any_notation_of_the_api_is_followed_and_comes_back(rig: Rig, limit: str) -> None:
    """DataDog/integrations-core#17280: an exponent was read as something else."""
    rig.pods.limit = limit
    assert rig.after(0, 2000.0, follow=Follow(cpu_limit_mcpu=(200.0, 2500.0))) == 0, "it has that already"
    assert rig.after(3, 600.0) == 1
    assert rig.pods.limit == "600m"
    assert rig.after(3, ended=True) == 1
    assert rig.pods.limit == limit


@pytest.mark.parametrize("status", [403, 404, 422, 500])
def test_a_refusal_is_reported_and_respected(rig: Rig, status: int) -> None:
    rig.pods.answer = status
    assert rig.after(0, 600.0) == 1
    assert sum(rig.after(0.05, 600.0) for _ in range(3)) == 0
    assert (KEY in rig.sync.troubles) == (status != 500), "without an answer it tries again, and the agent reports it"
    rig.pods.answer = 200
    assert rig.after(RETRY_REFUSED_S + 1, 600.0) == 1
    assert not rig.sync.troubles


def test_annotations_follow_and_are_restored(rig: Rig) -> None:
    follow = Follow(egress_mbps=(1.0, 100.0), priority="guaranteed")
    rig.pods.document["metadata"]["annotations"] = {EGRESS_NOTE: "50M"}
    assert rig.after(0, math.inf, follow=follow, egress_mbps=12.3456) == 2
    assert rig.pods.document["metadata"]["annotations"] == {EGRESS_NOTE: "12346k", PRIORITY_NOTE: "guaranteed"}
    assert rig.after(3, math.inf, follow=follow, egress_mbps=12.5) == 0
    assert rig.after(3, math.inf, follow=follow, egress_mbps=math.inf) == 1
    assert rig.pods.document["metadata"]["annotations"][EGRESS_NOTE] == "100M"
    assert rig.after(3, ended=True) == 1
    assert rig.pods.document["metadata"]["annotations"] == {EGRESS_NOTE: "50M"}


def test_quantities_that_would_be_taken_for_nothing_are_not_sent() -> None:
    assert [cpu_text(value) for value in (1, 300.5, 2000)] == ["1m", "301m", "2000m"]
    assert [bandwidth_text(value) for value in (0.001, 10, 12.3, 0.5)] == ["1k", "10M", "12300k", "500k"]
    for value in (0, -1, math.nan, math.inf, 0.4e-3, 2e9):
        with pytest.raises(ValueError, match="expected"):
            bandwidth_text(value)
    read = {
        "1Ki": 1_024_000.0,
        "1500m": 1500.0,
        ".5": 500.0,
        "3G": 3e12,
        "1e3m": 0.0,
        "2ei": 0.0,
        "-1": 0.0,
        "1\n": 0.0,
    }
    assert {text: mcpu(text) for text in read} == read
    for value in (0, 0.5, math.nan, math.inf, 1e8):
        with pytest.raises(ValueError, match="expected"):
            cpu_text(value)


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 2, "pods": {}}', '{"version": 1, "pods": {"u": {"x": 1}}}'])
def test_a_broken_record_of_the_first_state_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(FailureError, match="resize these by hand"):
        OriginalsFile(tmp_path)
