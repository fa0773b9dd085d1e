"""Metrics and status page over HTTP, by a publisher in a process of its own."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slicepilot.configs import ConfigError
from slicepilot.configs.documents import check
from slicepilot.controller.contracts.answers import Status
from slicepilot.controller.publisher.handle import Publisher, PublisherOptions
from slicepilot.controller.publisher.listeners import HttpAddress
from slicepilot.controller.publisher.pages import status_page
from slicepilot.controller.record.ring import TickRing

from .conftest import raw

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the publisher changes its user")


def test_pages_are_served_with_their_policies(controller: Any) -> None:
    controller.tick(50)
    controller.publish()
    status, headers, body = controller.get("/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<title>slicepilot</title>" in body
    for tag in ("script", "style"):
        (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), body, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in headers["content-security-policy"]
    assert headers["content-security-policy"].startswith("default-src 'none';")
    status, headers, body = controller.get("/status.json?x=1")
    check(body, Status)
    document = json.loads(body, parse_constant=pytest.fail)
    assert (status, headers["content-type"], headers["x-content-type-options"]) == (200, "application/json", "nosniff")
    assert [item["name"] for item in document["slices"]] == [f"slice{k}" for k in range(1, 6)]
    assert document["ticks"]["written"] == 50
    status, headers, body = controller.get("/metrics", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 10_000


def test_pages_are_up_to_date(controller: Any) -> None:
    controller.tick(50)
    controller.publish()
    for ticks in (60, 70, 80):
        controller.tick(10)
        time.sleep(0.3)  # longer than a rendering lasts, shorter than the publisher rests by itself
        assert json.loads(controller.get("/status.json")[2])["ticks"]["written"] == ticks
        assert controller.ask({"command": "status"})["status"]["ticks"]["written"] == ticks


def test_the_page_needs_nothing_from_elsewhere_and_writes_no_markup() -> None:
    text = status_page()[0].decode()
    assert set(re.findall(r"\w+://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|\sstyle=|\son\w+=", text)
    assert not re.search(r"\b(src|href)=", text)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("LocalHost:9464", 200), ("127.0.0.1:80", 200), ("[::1]:9464", 200), ("192.0.2.7", 200),
        (socket.gethostname(), 200), ("probe.example:9464", 200), ("evil.example", 421), ("", 421),
        ("localhost.evil.example", 421), ("127.0.0.1.evil.example", 421),
    ],
)  # fmt: skip
def test_only_names_of_this_machine_are_served(published: Any, host: str, status: int) -> None:
    answer = raw(published.publisher.http_port, f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert answer.split(b" ")[1] == str(status).encode()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", 501),
        (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET / HTTP/2\r\nHost: localhost\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 9000 + b"\r\n\r\n", 431),
    ],
)
def test_other_requests_are_refused(published: Any, request_: bytes, status: int) -> None:
    assert raw(published.publisher.http_port, request_).split(b" ")[1] == str(status).encode()


def test_it_waits_for_a_controller_that_still_loads_its_policy(controller: Any) -> None:
    controller.ring = TickRing(controller.run / "ticks", controller.count)
    publisher = Publisher.start(PublisherOptions(run=controller.run, state=controller.state), controller.theirs)
    controller.publisher = publisher
    with controller.connect() as connection:
        connection.sendall(b'{"command": "status"}\n')
        connection.settimeout(1.5)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        controller.ring.describe(controller.description)
        connection.settimeout(30)
        with connection.makefile("rb") as file:
            assert json.loads(file.readline())["status"]["run"]["name"] == "node"


def listening() -> set[str]:
    """Inodes of the TCP sockets of this network namespace that listen, of either family."""
    lines = [line for file in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{file}").read_text().splitlines()[1:]]
    return {line.split()[9] for line in lines if line.split()[3] == "0A"}


def opened_by(pid: int | str) -> set[str]:
    links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    return {inode for link in links for inode in re.findall(r"socket:\[(\d+)\]", link)}


def test_off_does_not_listen(make: Callable[..., Any]) -> None:
    before = opened_by("self") & listening()
    assert len((opened_by(make().publish(listen="127.0.0.1:0").pid)) & listening()) == 1
    publisher = make().publish(listen="off")
    assert publisher.http_port is None
    assert not opened_by(publisher.pid) & listening()
    assert len(opened_by("self") & listening() - before) == 1


def test_an_address_that_is_taken_or_is_none_is_refused_at_once(make: Callable[..., Any]) -> None:
    first = make()
    port = first.publish().http_port
    with pytest.raises(ConfigError, match=rf"^listen = 127\.0\.0\.1:{port}: Address already in use; expected a free"):
        make().publish(listen=f"127.0.0.1:{port}")
    for text in ("localhost:9464", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", ":9464", "", "on"):
        with pytest.raises(ConfigError, match=r"expected off, inherited, local, or an address and port, such"):
            HttpAddress.parse(text)
