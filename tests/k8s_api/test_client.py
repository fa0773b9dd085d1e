"""The client's side of a conversation whose other side is a server that says no in every way the API server has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError
from slicepilot.cluster.client.lease import Lease
from slicepilot.cluster.client.reflector import Reflector, Source
from slicepilot.configs import ConfigError

from .server import Answer, serving

LEASES = "/apis/coordination.k8s.io/v1/namespaces/system/leases"


def item(name: str, version: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": version}}


def soon(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_watch_without_events_ends_at_once_when_it_is_closed(tmp_path: Path) -> None:
    ended = threading.Event()

    def events() -> Iterator[dict[str, Any]]:
        yield {"type": "ADDED", "object": item("a", "11")}
        ended.wait(60.0)

    def script(method: str, path: str, query: dict[str, str], body: Any) -> Answer:
        del method, path, body
        return 200, {}, events() if "watch" in query else [{"metadata": {"resourceVersion": "10"}, "items": []}]

    with serving(tmp_path, script) as (api, _):
        reflector = Reflector(api, Source("/things", {}), lambda: None)
        reflector.start()
        soon(lambda: bool(reflector.objects()))
        reflector.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "watch /things"]
        ended.set()


def test_a_watch_goes_on_where_it_was_and_is_listed_anew_when_the_server_has_forgotten(tmp_path: Path) -> None:
    watches: list[str] = []

    def script(method: str, path: str, query: dict[str, str], body: Any) -> Answer:
        del method, path, body
        if "watch" not in query:
            first = not watches
            items = [item("a", "5"), item("b", "6")] if first else [item("c", "40")]
            if first and "continue" not in query:  # in pages
                return 200, {}, [{"metadata": {"resourceVersion": "10", "continue": "more"}, "items": items[:1]}]
            return 200, {}, [{"metadata": {"resourceVersion": "10" if first else "40"}, "items": items[-1:]}]
        watches.append(query["resourceVersion"])
        if len(watches) == 1:
            events = [{"type": "ADDED", "object": item("d", "11")}, {"type": "DELETED", "object": item("a", "12")}]
            return 200, {}, [*events, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}}]
        if len(watches) == 2:
            return 200, {}, [{"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}]
        time.sleep(0.2)
        return 200, {}, [[{"type": 5}], ["not an event"], [{}]][len(watches) % 3] if len(watches) > 4 else []

    with serving(tmp_path, script) as (api, server):
        reflector = Reflector(
            api, Source("/things", {"fieldSelector": "x=y"}), lambda: None, lambda it: it["metadata"]["name"]
        )
        reflector.start()
        soon(lambda: len(watches) >= 2)
        assert sorted(reflector.objects()) == ["b", "d"]
        soon(lambda: reflector.objects() == ["c"] and len(watches) >= 3)
        soon(lambda: len(watches) >= 6)  # empty lines, and lines that are no events, end no thread
        reflector.close()
    assert watches[:3] == ["10", "20", "40"]
    assert all(query["fieldSelector"] == "x=y" for *_, query, _ in server.requests)


def test_retry_after_is_respected(tmp_path: Path) -> None:
    def script(method: str, path: str, query: dict[str, str], body: Any) -> Answer:
        del method, path, query, body
        return 429, {"Retry-After": "1"}, [{"message": "slow\ndown"}]

    reported: list[str] = []
    with serving(tmp_path, script) as (api, server):
        reflector = Reflector(
            api, Source("/things", {}), lambda: None, failed=lambda text, wait_s: reported.append(text)
        )
        reflector.start()
        soon(lambda: len(server.requests) >= 3)
        reflector.close()
        assert not reflector.synced
    times = [at_s for *_, at_s in server.requests[:3]]
    assert times[1] - times[0] >= 1.0
    assert times[2] - times[1] > 1.25  # longer each time
    assert reported[0] == "/things: 429: GET /things: slow down"


def test_errors_are_of_one_kind(tmp_path: Path) -> None:
    def script(method: str, path: str, query: dict[str, str], body: Any) -> Answer:
        del method, query, body
        return (500, {}, [{"message": "no", "code": 404}]) if path == "/bad" else (404, {}, [{"message": "not found"}])

    with serving(tmp_path, script) as (api, _):
        with pytest.raises(ApiError, match="500: GET /bad: no"):
            api.get("/bad")
        api.delete("/gone")
    with pytest.raises(ApiError, match="GET /bad") as error:  # nobody listens any more
        api.get("/bad")
    assert error.value.status == 0
    with pytest.raises(ConfigError, match="kubeconfig = "):
        Api(tmp_path / "not-there.yaml")


class Leases:
    """What an API server does with Leases: versions, and conflicts of them."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] | None = None
        self.version = 0

    def script(self, method: str, path: str, query: dict[str, str], body: Any) -> Answer:
        del query
        assert path.startswith(LEASES)
        if method == "GET":
            return (404, {}, [{"message": "no", "code": 404}]) if self.kept is None else (200, {}, [self.kept])
        if method == "PUT" and self.kept is None:
            return 404, {}, [{"message": "no", "code": 404}]
        if (
            self.kept is not None
            and body["metadata"].get("resourceVersion") != self.kept["metadata"]["resourceVersion"]
        ):
            return 409, {}, [{"message": "conflict"}]
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.kept = body
        return 200, {}, [body]


def test_one_holds_a_lease_and_the_next_has_it_when_it_was_not_renewed_by_the_clock_here(tmp_path: Path) -> None:
    leases = Leases()
    with serving(tmp_path, leases.script) as (api, server):
        mine, other = (Lease(api, "system", "n", who, 120, 40, 20) for who in ("mine", "other"))
        mine.step(0.0)
        other.step(0.0)
        assert (mine.held, other.held, other.holder) == (True, False, "mine")
        mine.step(1.0)
        assert len(server.requests) == 3  # not due: a process has read and made it, the other has read
        mine.step(100.0)
        other.step(110.0)  # renewed since: it counts from here
        other.step(220.0)
        assert not other.held
        other.step(240.0)
        assert other.held
        assert leases.kept is not None
        assert leases.kept["spec"]["leaseTransitions"] == 1
        mine.step(300.0)  # a conflict: what is there now is looked at next
        mine.step(310.0)
        assert not mine.held
        other.release()
        mine.step(400.0)
        assert mine.held
        again = Lease(api, "system", "n", "mine")
        again.step(0.0)
        assert again.held


def test_who_cannot_ask_goes_on_holding(tmp_path: Path) -> None:
    leases = Leases()
    with serving(tmp_path, leases.script) as (api, _):
        lease = Lease(api, "system", "n", "mine")
        lease.step(0.0)
    with pytest.raises(ApiError):
        lease.step(1000.0)
    assert lease.held
