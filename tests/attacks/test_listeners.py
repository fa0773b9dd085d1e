"""Clients without privileges, or members of the control group, try to keep others from metrics, orders and logs."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.controller.publisher.control_socket import MAX_CLIENTS
from slicepilot.controller.publisher.pages import MAX_CONNECTIONS, REQUEST_S
from tests.controller.publisher.conftest import Controller, raw

from . import unprivileged

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: clients of other users, the publisher's own")
DEEP = "too deeply nested"
IN_TIME_S = 10.0
"""What Prometheus waits for; the publisher runs behind all else, and here beside its attacker and other tests."""
CLIENT = """
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
kept = []
def connect():
    kept.append(socket.socket({family}, socket.SOCK_STREAM))
    kept[-1].connect({address!r})
    return kept[-1]
{body}
"""


@contextlib.contextmanager
def attacker(address: object, body: str, gid: int = unprivileged.NOBODY) -> Iterator[None]:
    """A process of another user that connects as ``body`` says; it prints a line when it has begun."""
    family = "socket.AF_UNIX" if isinstance(address, str) else "socket.AF_INET"
    code = CLIENT.format(family=family, address=address, body=body)
    with unprivileged.start(code, gid=gid) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield
        finally:
            process.kill()


IDLE = "[connect() for _ in range(COUNT)]; print('begun', flush=True); time.sleep(60)"
SLOW = """
for _ in range(600): connect().sendall(b'GET /metrics HTTP/1.1\\r\\nHost: ')
print('begun', flush=True)
while True:
    for client in kept:
        try: client.sendall(b'x')
        except OSError: pass
    time.sleep(1)
"""
DEAF = """
for _ in range(600):
    client = socket.socket(); client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect(ADDRESS); kept.append(client)
    client.sendall(b'GET /metrics HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n')
print('begun', flush=True); time.sleep(60)
"""
HALF_CLOSED = """
for _ in range(1000):
    connect().sendall(b'GET /'); kept[-1].shutdown(socket.SHUT_WR)
print('begun', flush=True); time.sleep(60)
"""
AGAIN_AND_AGAIN = """
print('begun', flush=True)
while True:
    connect()
    if len(kept) > COUNT: kept.pop(0).close()
"""


def descriptors_of(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def scrape(controller: Controller) -> float:
    """Seconds that a scraper waits for the metrics."""
    began_s = time.monotonic()
    status, _, body = controller.get("/metrics")
    assert status == 200
    assert len(body) > 10_000
    return time.monotonic() - began_s


@pytest.mark.parametrize("body", [IDLE, SLOW, DEAF, HALF_CLOSED, AGAIN_AND_AGAIN])
def test_a_scraper_gets_in_whatever_others_connect(controller: Controller, body: str) -> None:
    publisher = controller.publish()
    controller.tick(50)
    address = ("127.0.0.1", publisher.http_port)
    with attacker(address, body.replace("ADDRESS", repr(address)).replace("COUNT", "1000")):
        waits_s = []
        until_s = time.monotonic() + REQUEST_S - 1  # before the first of them are hung up on for their time
        while time.monotonic() < until_s or len(waits_s) < 10:
            waits_s.append(scrape(controller))
            time.sleep(0.1)
        assert max(waits_s) < IN_TIME_S
        assert descriptors_of(publisher.pid) < 2 * MAX_CONNECTIONS
    assert publisher.alive()


def test_ten_thousand_connections_in_a_row_leave_nothing(controller: Controller) -> None:
    publisher = controller.publish()
    before = descriptors_of(publisher.pid)
    address = ("127.0.0.1", publisher.http_port)
    with attacker(address, "for _ in range(10_000): connect().close()\nprint('begun', flush=True); time.sleep(60)"):
        scrape(controller)
    deadline_s = time.monotonic() + REQUEST_S + 5
    while descriptors_of(publisher.pid) > before and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert descriptors_of(publisher.pid) <= before
    scrape(controller)


def test_requests_in_a_row_on_one_connection_get_one_answer(controller: Controller) -> None:
    port = controller.publish().http_port
    assert port is not None
    assert raw(port, b"GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20).count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("head", [b"X: " + b"y" * (1 << 20), b"a: b\r\n" * 100_000])
def test_a_head_without_end_is_cut_off(controller: Controller, head: bytes) -> None:
    port = controller.publish().http_port
    assert port is not None
    answer = raw(port, b"GET / HTTP/1.1\r\n" + head)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
    scrape(controller)


GROUP_WAITS = f"""
for _ in range({2 * MAX_CLIENTS}): connect().sendall(b'{{"command": "reload", "guard": "default"}}\\n')
print('begun', flush=True); time.sleep(60)
"""
GROUP_DEAF = f"""
for _ in range({MAX_CLIENTS}):
    try: connect().sendall(b'{{"command": "status"}}\\n' * 20)
    except OSError: pass
print('begun', flush=True); time.sleep(60)
"""


GROUP_BABBLES = f"""
for number in range({MAX_CLIENTS}):
    try: connect().sendall((b'{{"command": "nothing"}}\\n' * 2000, b'{{"command": "pa', b'x' * 200_000)[number % 3])
    except OSError: pass
print('begun', flush=True); time.sleep(60)
"""


@pytest.mark.parametrize("body", [IDLE, GROUP_WAITS, AGAIN_AND_AGAIN, GROUP_DEAF, GROUP_BABBLES])
def test_members_of_the_group_do_not_keep_root_from_giving_orders(controller: Controller, body: str) -> None:
    publisher = controller.publish(group="daemon")
    # A reload that takes for ever: its client waits for its answer.
    controller.answer = lambda order: None if order["command"] == "reload" else {"ok": True, "mode": "live"}
    with attacker(str(controller.run / "control.sock"), body.replace("COUNT", "500"), gid=1):
        began_s = time.monotonic()
        for _ in range(5):
            assert controller.ask({"command": "safe"})["ok"]
        assert time.monotonic() - began_s < IN_TIME_S
    assert publisher.alive()


@pytest.mark.parametrize("encoding", ["utf-16-be", "utf-32-be"])
@pytest.mark.parametrize("text", ['{"command": "pause"}\n', '{"\u2201":' + "[" * 15_000 + "\n"])
def test_an_order_that_is_no_utf8_is_refused_and_logs_nothing(
    controller: Controller, text: str, encoding: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """In such a line brackets are other bytes, and a publisher that is confined may not read what decodes it."""
    publisher = controller.publish(log="json")
    with controller.connect() as connection:
        connection.sendall(text.encode(encoding))
        answer = json.loads(connection.makefile().readline())
    assert (answer["ok"], answer["reason"]) == (False, "input")
    assert answer["error"] in {f"order: {what}; expected one object on a line" for what in ("not valid JSON", DEEP)}
    assert publisher.alive()
    assert controller.orders == []
    assert "Traceback" not in capfd.readouterr().err


def test_a_log_that_nobody_reads_holds_up_nothing(controller: Controller) -> None:
    """As when the service manager's journal hangs: standard error is a pipe that is full."""
    reading, writing = os.pipe()
    saved = os.dup(2)
    try:
        os.dup2(writing, 2)
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b"x" * 4096)
        os.set_blocking(writing, True)
        publisher = controller.publish(log="json")
    finally:
        os.dup2(saved, 2)
        os.close(saved)
    controller.tick(10)
    for turn in range(20):  # a line of the log each
        controller.note(unmeasured=[f"slice{turn}: " + "y" * 8000])
        assert scrape(controller) < IN_TIME_S
        assert controller.ask({"command": "safe"})["ok"]
    began_s = time.monotonic()
    controller.go()
    while publisher.alive():
        assert time.monotonic() - began_s < 10, "the log that nobody reads is waited for"
        time.sleep(0.05)
    os.close(reading)
    os.close(writing)
