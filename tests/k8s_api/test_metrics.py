"""The page on an agent's port: real publishers at their Unix sockets, and the process that serves their metrics."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slicepilot.cluster.metrics.figures import AgentFacts, LoopFacts
from slicepilot.cluster.metrics.handle import MetricsServer
from slicepilot.cluster.metrics.process import fetched
from slicepilot.controller.publisher.listeners import LOCAL_SOCKET, HttpAddress
from tests.controller.publisher.conftest import Controller, make  # noqa: F401  (a fixture)
from tests.node.runtimes import until

FACTS = AgentFacts(
    node="edge",
    version="1",
    started_s=1.0,
    time_s=2.0,
    lease_held=True,
    requests=(("GET", 200, 3), ("PATCH", 0, 1)),
    slice_sets={"LoopRunning": 1},
    heard_s={"pods": 3.0},
)


@pytest.fixture(name="server")
def _server() -> Iterator[tuple[MetricsServer, str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = MetricsServer(HttpAddress("127.0.0.1", port))
    yield server, f"http://127.0.0.1:{port}/metrics"
    server.close()


def scraped(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return {item.name: item for item in text_string_to_metric_families(answer.read().decode())}


def facts(*loops: LoopFacts) -> AgentFacts:
    return AgentFacts(**{**FACTS.__dict__, "loops": loops, "time_s": time.time()})


@pytest.mark.live
def test_all_loops_on_one_port_with_whose_they_are(make: Any, server: tuple[MetricsServer, str]) -> None:  # noqa: F811
    first, second = make(), make(2)
    loops = []
    for name, controller in (("video", first), ("voice", second)):
        controller.tick(20)
        controller.publish(listen="local", records_mb=1.0)
        loops.append(LoopFacts(f"core.{name}", name, "core", str(controller.run / LOCAL_SOCKET), starts=2))
    loops.append(LoopFacts("core.gone", "gone", "core", str(first.run / "nothing"), 1, 1))
    handle, url = server
    handle.report(facts(*loops))
    result = scraped(url)
    rates = result["slicepilot_slice_offered_bytes_per_second"].samples
    assert [(item.labels["loop"], item.labels["sliceset"], item.labels["slice"]) for item in rates] == [
        *(("core.video", "video", f"slice{i}") for i in range(1, 6)),
        *(("core.voice", "voice", f"slice{i}") for i in range(1, 3)),
    ]
    assert {item.labels["sliceset_namespace"] for item in rates} == {"core"}
    up = {item.labels["loop"]: item.value for item in result["slicepilot_agent_loop_up"].samples}
    assert up == {"core.video": 1, "core.voice": 1, "core.gone": 0}
    # Figures of the publishers' own, which the alerts about records need, are there as well.
    assert {"slicepilot_records_errors", "slicepilot_ticks_lost", "process_cpu_seconds"} <= result.keys()
    assert result["slicepilot_agent_api_requests"].samples[1].labels == {"verb": "PATCH", "code": "0"}
    status = Path(f"/proc/{handle.pid}/status").read_text()
    if os.geteuid() == 0:
        assert "Uid:\t65534\t65534\t65534\t65534" in status
    for line in ("CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        assert line in status


@pytest.mark.live
def test_a_loop_that_hangs_costs_its_own_metrics(make: Any, server: tuple[MetricsServer, str], tmp_path: Path) -> None:  # noqa: F811
    del tmp_path
    controller: Controller = make()
    controller.tick(20)
    controller.publish(listen="local")
    where = controller.run / LOCAL_SOCKET
    silent = controller.run / "silent"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(silent))
        silent.chmod(0o666)
        listener.listen()
        handle, url = server
        loops = (
            LoopFacts("core.video", "video", "core", str(where)),
            LoopFacts("core.hung", "hung", "core", str(silent)),
        )
        handle.report(facts(*loops))
        started_s = time.monotonic()
        up = {item.labels["loop"]: item.value for item in scraped(url)["slicepilot_agent_loop_up"].samples}
        assert up == {"core.video": 1, "core.hung": 0}
        assert time.monotonic() - started_s < 5.0


@pytest.mark.live
def test_root_and_the_publishers_user_alone_can_open_the_socket_which_goes_with_it(make: Any) -> None:  # noqa: F811
    controller: Controller = make()
    controller.tick(5)
    publisher = controller.publish(listen="local")
    where = controller.run / LOCAL_SOCKET
    assert publisher.http_port is None
    assert stat.S_IMODE(where.stat().st_mode) == 0o600
    if os.geteuid() == 0:
        assert where.stat().st_uid == 65534
    assert "slicepilot_mode" in str(fetched(str(where)))
    publisher.stop()
    assert not where.exists()


def test_the_process_is_started_again_and_ends_with_the_agent(server: tuple[MetricsServer, str]) -> None:
    handle, url = server
    handle.report(FACTS)
    scraped(url)
    first = handle.pid
    assert first is not None
    os.kill(first, 9)

    def another() -> bool:
        handle.report(FACTS)
        return handle.pid not in {None, first}

    until(another, "not started again", 10.0)
    assert scraped(url)["slicepilot_agent_lease_held"].samples[0].value == 1
    second = handle.pid
    handle.close()
    assert not Path(f"/proc/{second}").exists()


def test_nothing_else_is_served(server: tuple[MetricsServer, str]) -> None:
    handle, url = server
    handle.report(FACTS)
    scraped(url)
    for other in ("/", "/status.json", "/metrics/"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url.removesuffix("/metrics") + other, timeout=10)
    foreign = urllib.request.Request(url, headers={"Host": "rebound.example"})
    with pytest.raises(urllib.error.HTTPError, match="421"):
        urllib.request.urlopen(foreign, timeout=10)


ANSWERS = {
    "an error": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
    "no length": b"HTTP/1.1 200 OK\r\n\r\nabc",
    "too long": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
    "less than it said": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
    "no text": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\xff",
    "a head without an end": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
}


def test_an_answer_that_is_not_valid_is_left_out(tmp_path: Path) -> None:
    for number, (name, answer) in enumerate(ANSWERS.items()):
        path = str(tmp_path / f"{number}")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()

            def serve(listener: socket.socket = listener, answer: bytes = answer) -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

            thread = threading.Thread(target=serve)
            thread.start()
            assert fetched(path) is None, name
            thread.join()
