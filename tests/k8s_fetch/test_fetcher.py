"""Fetching by ConfigMaps from a server that says what a test has it say: whose, when again, and what is reported."""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slicepilot.cluster.fetch import fetcher as times
from slicepilot.cluster.fetch.fetcher import MOST_IN_NAMESPACE, Fetcher
from slicepilot.cluster.fetch.sources import check_rules
from slicepilot.cluster.fetch.store import FOLDER, Store
from slicepilot.cluster.plan.plan import Missing, Planner, SetPlan
from slicepilot.cluster.resources.pod import Pod
from slicepilot.cluster.resources.wanted import CONFIG_MAP, RULES, VOLUME, Fetched, Wanted
from slicepilot.cluster.status.report import report
from slicepilot.configs import ConfigError
from tests.k8s_api.documents import pod_document, set_document
from tests.k8s_api.server import Answer, Server, serving

from .bundles import digest, parts

D = digest(parts())
BUNDLE = Wanted("core", CONFIG_MAP, "b", "", D)
GUARD = Wanted("core", RULES, "g", "guard.yaml")
WHO = frozenset({("uid", 1)})


def coded(of: dict[str, bytes]) -> dict[str, Any]:
    return {"binaryData": {name: base64.b64encode(data).decode() for name, data in of.items()}}


class Script:
    """ConfigMaps by namespace and name; what is not there is answered 404."""

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, Any]] = {}
        self.status = 200

    def __call__(self, method: str, path: str, query: dict[str, str], body: Any) -> Answer:
        assert (method, query, body) == ("GET", {}, None)
        namespace, _, name = path.split("/")[-3:]
        if self.status != 200:
            return self.status, {}, [{"message": "no"}]
        result = self.documents.get(f"{namespace}/{name}")
        return (404, {}, [{}]) if result is None else (200, {}, [result])


@pytest.fixture(name="script")
def _script() -> Script:
    return Script()


@pytest.fixture(name="served")
def _served(tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Fetcher, Server]]:
    monkeypatch.setattr(times, "RETRY_S", 0.1)
    monkeypatch.setattr(times, "EDITED_S", 0.1)
    with serving(tmp_path, script) as (api, server):
        fetcher = Fetcher(api, tmp_path / "volumes", Store(tmp_path / "state"), lambda: None, lambda *_: None)
        fetcher.start()
        yield fetcher, server
        fetcher.close()


def soon(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_bundle_is_fetched_once_and_rules_again_when_a_slice_set_is_edited(
    script: Script, served: tuple[Fetcher, Server]
) -> None:
    fetcher, server = served
    script.documents = {"core/b": coded(parts()), "core/g": {"data": {"guard.yaml": "dwell: {nice_s: 1}"}}}
    fetcher.post({BUNDLE: WHO, GUARD: WHO}, ())
    soon(lambda: all(each.path is not None for each in fetcher.fetched.values()))
    before = fetcher.fetched[GUARD].path
    assert before is not None
    assert before.read_text() == "dwell: {nice_s: 1}"
    assert "never promoted" in str(fetcher.fetched[BUNDLE].refusal)
    time.sleep(1.0)
    assert len(server.requests) == 2
    script.documents["core/g"] = {"data": {"guard.yaml": "dwell: {nice_s: 2}"}}
    fetcher.post({BUNDLE: WHO, GUARD: frozenset({("uid", 2)})}, ())
    soon(lambda: fetcher.fetched[GUARD].path != before)
    assert len(server.requests) == 3


def test_rules_that_cannot_be_had_any_more_stay_as_they_were(script: Script, served: tuple[Fetcher, Server]) -> None:
    fetcher, _ = served
    script.documents["core/g"] = {"data": {"guard.yaml": "{}"}}
    fetcher.post({GUARD: WHO}, ())
    soon(lambda: fetcher.fetched[GUARD].path is not None)
    before = fetcher.fetched[GUARD].path
    script.status = 403
    fetcher.post({GUARD: frozenset({("uid", 2)})}, ())
    soon(lambda: fetcher.fetched[GUARD].problem is not None)
    assert fetcher.fetched[GUARD].path == before
    assert fetcher.fetched[GUARD].problem == (
        "guard.configMap: this agent may not read ConfigMaps of namespace core; expected: a namespace that the "
        "chart's value bundles.configMapNamespaces lists"
    )


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (None, "no ConfigMap b in namespace core"),
        ({}, "no SHA256SUMS, bundle.yaml, policy.onnx there"),
        ({"binaryData": {"policy.onnx": "!"}}, "policy.onnx: not valid base64"),
        (coded({"SHA256SUMS": b"x" * 5000}), "SHA256SUMS: more than 4096 bytes"),
        (coded(parts("other")), "; expected " + D),
        (coded(parts() | {"policy.onnx": b"x"}), "policy.onnx: its SHA-256 differs"),
    ],
)
def test_a_bad_bundle_is_reported_and_tried_again(
    script: Script, served: tuple[Fetcher, Server], document: Any, why: str
) -> None:
    fetcher, _ = served
    if document is not None:
        script.documents["core/b"] = document
    fetcher.post({BUNDLE: WHO}, ())
    soon(lambda: fetcher.fetched[BUNDLE].problem is not None)
    assert why in str(fetcher.fetched[BUNDLE].problem)
    assert str(fetcher.fetched[BUNDLE].problem).startswith("policy.bundle.configMap: ")
    script.documents["core/b"] = coded(parts())
    soon(lambda: fetcher.fetched[BUNDLE].path is not None)
    assert fetcher.fetched[BUNDLE].problem is None


def test_a_namespace_gets_its_own_bundles_alone_and_a_bounded_number(
    script: Script, served: tuple[Fetcher, Server]
) -> None:
    fetcher, server = served
    script.documents["core/b"] = coded(parts())
    theirs = Wanted("guest", CONFIG_MAP, "b", "", D)
    many = {Wanted("guest", CONFIG_MAP, f"b{number}", "", D): WHO for number in range(MOST_IN_NAMESPACE)}
    fetcher.post({BUNDLE: WHO, theirs: WHO, **many}, ())
    soon(lambda: fetcher.fetched[BUNDLE].path is not None and fetcher.fetched[theirs].problem is not None)
    assert fetcher.fetched[theirs].path is None
    last = Wanted("guest", CONFIG_MAP, f"b{MOST_IN_NAMESPACE - 1}", "", D)
    assert "already refers to 8 others" in str(fetcher.fetched[last].problem)
    assert not any(path.endswith(last.name) for _, path, _, _ in server.requests)


def test_a_node_that_starts_while_the_server_is_away_has_what_it_had(
    tmp_path: Path, script: Script, served: tuple[Fetcher, Server]
) -> None:
    fetcher, _ = served
    Store(tmp_path / "state").put_bundle(BUNDLE, parts(), ())
    Store(tmp_path / "state").put_rules(GUARD, b"{}", ())
    script.status = 500
    fetcher.post({BUNDLE: WHO, GUARD: WHO}, ())
    soon(lambda: all(each.path is not None for each in fetcher.fetched.values()))
    assert fetcher.fetched[BUNDLE].problem is None
    soon(lambda: fetcher.fetched[GUARD].problem is not None)


def test_a_bundle_comes_from_a_volume_of_its_own_namespace_and_nothing_outside_it(
    tmp_path: Path, served: tuple[Fetcher, Server]
) -> None:
    fetcher, server = served
    volume = tmp_path / "volumes" / "core" / "edge"
    (volume / "bundles" / "one").mkdir(parents=True)
    for name, data in parts().items():
        (volume / "bundles" / "one" / name).write_bytes(data)
    (volume / "inside").symlink_to("bundles/one")
    (volume / "outside").symlink_to(tmp_path)
    (volume / "files").mkdir()
    (volume / "files" / "SHA256SUMS").symlink_to("/etc/passwd")
    cases = {
        Wanted("core", VOLUME, "edge", "bundles/one", D): "",
        Wanted("core", VOLUME, "edge", "inside", D): "",
        Wanted("core", VOLUME, "edge", "outside", D): "link out of the declared folders",
        Wanted("core", VOLUME, "edge", "files", D): "SHA256SUMS: expected a regular file",
        Wanted("core", VOLUME, "edge", "", D): "no SHA256SUMS, bundle.yaml, policy.onnx there",
        Wanted("core", VOLUME, "other", "bundles/one", D): "no volume other for namespace core",
        Wanted("guest", VOLUME, "edge", "bundles/one", D): "no volume edge for namespace guest",
    }
    for item, why in cases.items():
        fetcher.post({item: WHO}, ())
        if why:
            soon(lambda: fetcher.fetched[item].problem is not None)  # noqa: B023
            assert why in str(fetcher.fetched[item].problem)
        else:
            soon(lambda: fetcher.fetched[item].path is not None)  # noqa: B023
            shutil.rmtree(tmp_path / "state" / FOLDER / "bundles" / "core")
    assert not server.requests


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("dwell: {nice_s: -1}", "dwell.nice_s"),
        ("{", "not valid YAML"),
        ("secret: 1", "unknown field"),
        ("sla_floor: {window_s: 60}", "sla_floor.window_s: expected at most 5"),
        ("oscillation: {reversals: 1000}", "oscillation.reversals: expected"),
        ("overruns: {most: 1000}", "overruns.most: expected"),
        ("a: &a [x]\nb: [*a, *b]", "not valid YAML"),
    ],
)
def test_rules_of_others_are_bounded_and_not_quoted(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_rules(text.encode(), "g, guard.yaml")
    assert why in str(error.value)
    assert "secret" not in str(error.value)


def planned(planner: Planner, fetched: dict[Wanted, Fetched], **spec: Any) -> SetPlan:
    [plan] = planner.plan([set_document(**spec)], [Pod.of(pod_document())], {}, 0.0, fetched)
    return plan


def bundled(name: str = "b", **spec: Any) -> dict[str, Any]:
    return {"policy": {"bundle": {"configMap": {"name": name, "digest": D}}}, **spec}


def test_a_loop_starts_when_all_is_there_and_goes_on_with_what_it_had() -> None:
    planner, folder = Planner(), Path("/var/x")
    first = planned(planner, {}, **bundled())
    assert (first.loop, first.missing) == (None, Missing("Fetching", "policy.bundle.configMap: being fetched"))
    assert planner.wanted == {BUNDLE: frozenset({("uid-video", 1)})}
    there = planned(planner, {BUNDLE: Fetched(folder)}, **bundled())
    assert there.loop is not None
    assert (there.loop.run["bundle"], there.missing, planner.used) == (str(folder), None, {folder})
    other = Wanted("core", CONFIG_MAP, "c", "", D)
    document = set_document(**bundled("c"))
    document["metadata"]["generation"] = 2
    [after] = planner.plan([document], [Pod.of(pod_document())], {}, 1.0, {other: Fetched(problem="no")})
    assert after.loop is not None
    assert after.loop.starts_as(there.loop)
    assert after.missing == Missing("NotFetched", "no")
    degraded = report(after, None).conditions[2]
    assert (degraded.reason, degraded.message) == (
        "NotFetched",
        "no; its loop goes on with the previous bundle and rules",
    )
    signed = planned(Planner(trust=Path("/k")), {BUNDLE: Fetched(folder)}, **bundled()).loop
    assert signed is not None
    assert signed.run["trust"] == "/k"


def test_a_bundle_that_may_not_act_runs_in_shadow_until_it_may() -> None:
    planner, state = Planner(), {BUNDLE: Fetched(Path("/var/x"), refusal="never promoted")}
    plan = planned(planner, state, **bundled(mode="live"))
    assert plan.loop is not None
    assert (plan.loop.mode, plan.unpromoted) == ("shadow", "never promoted")
    assert report(plan, None).conditions[2].reason == "NotPromoted"
    later = planned(planner, {BUNDLE: Fetched(Path("/var/x"))}, **bundled(mode="live"))
    assert later.loop is not None
    assert later.loop.mode == "live"
    assert later.loop.starts_as(plan.loop)
    assert planned(Planner(), state, **bundled()).unpromoted is None
