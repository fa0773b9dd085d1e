"""The control socket: permissions, orders that are passed on, and limits for bad clients."""

from __future__ import annotations

import grp
import json
import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from slicepilot.configs import ConfigError
from slicepilot.controller.contracts.orders import ID_BYTES, MAX_ORDER_BYTES
from slicepilot.controller.publisher.control_socket import BURST, ControllerLink
from slicepilot.controller.publisher.listeners import Access, unix_listener
from slicepilot.controller.service.control_client import find_socket, loop_state

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: clients of other users, the publisher's own")

ORDERS = [
    {"command": "mode", "mode": "live"},
    {"command": "mode", "mode": "canary", "slices": ["slice1", "slice3"]},
    {"command": "mode", "mode": "shadow", "force": True},
    {"command": "pause"},
    {"command": "resume"},
    {"command": "safe"},
    {"command": "reload", "bundle": "/b", "guard": "default"},
]


def lines(connection: socket.socket, data: bytes) -> list[dict[str, Any]]:
    """Answers to these bytes, until the other side hangs up."""
    with connection, connection.makefile("rb") as file:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return [json.loads(line) for line in file]


def test_orders_reach_the_controller_as_they_were_given(controller: Any) -> None:
    controller.publish()
    controller.answer = lambda order: {"ok": True, "mode": "live", "echo": order}
    for order in ORDERS:
        assert controller.ask(order)["echo"] == order
    assert controller.orders == ORDERS


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"command": "mode", "mode": "liev"}', "mode = 'liev'; did you mean live? expected one of shadow, live"),
        (b'{"command": "mode", "mode": "canary", "slcies": []}', "unknown field 'slcies'; did you mean slices?"),
        (b'{"command": "mode", "mode": "canary", "slices": ["slice9"]}', "unknown name 'slice9'; did you mean slice"),
        (b'{"command": "reload"}', "neither bundle nor guard"),
        (b'{"command": "pause", "command": "safe"}', "a field is given twice"),
        (b'{"command": NaN}', "command = nan; expected one of mode, pause"),
        (b"[]", "order: list; expected one object on a line"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 60_000, "too deeply nested"),
        (b'{"command": ' + b"[" * 30_000, "too deeply nested"),
    ],
)
def test_invalid_orders_are_refused_in_one_line_and_go_nowhere(published: Any, line: bytes, error: str) -> None:
    (answer,) = lines(published.connect(), line + b"\n")
    assert (answer["ok"], answer["reason"]) == (False, "input")
    assert error in answer["error"]
    assert "\n" not in answer["error"]
    assert published.orders == []


def test_lines_and_rates_are_limited(controller: Any) -> None:
    controller.publish()
    (answer,) = lines(controller.connect(), b" " * (MAX_ORDER_BYTES + 10))
    assert answer["error"] == f"a line of more than {MAX_ORDER_BYTES} bytes"
    statuses = lines(controller.connect(), b'{"command":"status"}\n' * (2 * BURST))
    busy = [answer for answer in statuses if answer.get("reason") == "busy"]
    assert len(statuses) == 2 * BURST
    assert BURST - 10 <= len(busy) <= BURST
    assert controller.ask({"command": "status"})["ok"], "another client has an allowance of its own"


def test_orders_are_limited_in_all_and_those_of_the_group_apart_from_roots(controller: Any) -> None:
    controller.publish(group="daemon")
    answers = [answer for _ in range(4) for answer in lines(controller.connect(), b'{"command": "pause"}\n' * 10)]
    refused = [answer for answer in answers if not answer["ok"]]
    assert BURST - 10 <= len(refused) <= BURST
    assert {answer["reason"] for answer in refused} == {"busy"}
    assert len(controller.orders) == len(answers) - len(refused)
    assert '"ok": true' in as_user(controller.run / "control.sock", 1, [1])


def test_a_controller_that_says_nothing_is_not_waited_for_forever() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        answer = json.loads(ControllerLink(theirs, threading.Event(), answer_s=0.1).ask(b"{}"))
    assert answer == {"ok": False, "error": "no answer from the controller within 0.1 s", "reason": "no answer"}


def test_each_answer_goes_to_the_order_with_its_number() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ended, answers = threading.Event(), dict[bytes, bytes]()
    with theirs:
        link = ControllerLink(theirs, ended)
        link.start()
        asking = [
            threading.Thread(target=lambda line=line: answers.update({line: link.ask(line)})) for line in (b"a", b"b")
        ]
        for thread in asking:
            thread.start()
        orders = [ours.recv(1000) for _ in asking]
        ours.send(b"\1" + bytes(ID_BYTES - 1) + b"to an earlier publisher")
        for order in reversed(orders):
            ours.send(order)
        for thread in asking:
            thread.join(5.0)
        assert answers == {b"a": b"a", b"b": b"b"}
        ours.close()
        assert ended.wait(5.0)


ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    try:
        connection.sendall(b'{"command": "pause"}\\n')
    except BrokenPipeError:
        pass  # it has its answer already
    print(connection.recv(1000).decode())
"""


def as_user(path: Path, user: int, groups: list[int]) -> str:
    """What a client of another user gets to hear; the system's Python, which everybody can run."""
    result = subprocess.run(
        ["/usr/bin/python3", "-c", ASK, str(path)],
        user=user, group=groups[0] if groups else user, extra_groups=groups, capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    return result.stdout + result.stderr


def test_only_root_and_the_group_may_control(controller: Any) -> None:
    controller.publish(group="daemon")
    path, daemon = controller.run / "control.sock", grp.getgrnam("daemon").gr_gid
    assert (path.stat().st_mode & 0o777, path.stat().st_gid) == (0o660, daemon)
    assert "PermissionError" in as_user(path, 65534, [])
    assert '"ok": true' in as_user(path, 65534, [daemon]), "by the group it runs with"
    path.chmod(0o666)  # even then
    denied = "uid 65534 may not control this; expected root and members of group daemon"
    assert denied in as_user(path, 65534, [])
    assert '"ok": true' in as_user(path, 1, [1]), "user daemon is a member"
    assert len(controller.orders) == 2


def test_without_a_group_only_root_may(controller: Any) -> None:
    controller.publish()
    path = controller.run / "control.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o666)
    assert "uid 1 may not control this; expected root" in as_user(path, 1, [1])
    assert controller.orders == []


def test_only_a_socket_without_a_listener_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    first = unix_listener("control socket", path)
    with pytest.raises(ConfigError, match="in use by another controller of this name"):
        unix_listener("control socket", path)
    first.close()
    unix_listener("control socket", path).close()
    path.unlink()
    path.write_text("precious")
    with pytest.raises(ConfigError, match="another file is there"):
        unix_listener("control socket", path)
    assert path.read_text() == "precious"
    with pytest.raises(ConfigError, match="group = 'nobodies': expected the name of a group"):
        Access(0, "nobodies").gid()
    with pytest.raises(ConfigError, match="AF_UNIX path too long"):
        unix_listener("control socket", tmp_path / ("x" * 120))
    assert [entry.name for entry in tmp_path.iterdir()] == ["control.sock"]


# -- clients -----------------------------------------------------------------------------------------------------


def test_without_an_answer_it_is_said_what_the_loop_does(controller: Any) -> None:
    ring = controller.run / "ticks"
    assert loop_state(ring) == "the controller is still starting, or hangs"
    controller.tick(5)
    assert f"the loop runs (pid {os.getpid()}): `slicepilot top` shows it" in loop_state(ring)
    assert f"kill -USR1 {os.getpid()} orders shadow at once" in loop_state(ring)
    assert "no controller runs there" in loop_state(controller.run / "other")


def test_a_controller_is_chosen_by_name_or_because_it_runs_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no controller runs there; start `slicepilot run` first"):
        find_socket(None, tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "control.sock").touch()
        if name == "a":
            assert find_socket(None, tmp_path) == tmp_path / "a" / "control.sock"
    assert find_socket("b", tmp_path) == tmp_path / "b" / "control.sock"
    with pytest.raises(ConfigError, match="name: not given; expected one of a, b"):
        find_socket(None, tmp_path)
    with pytest.raises(ConfigError, match="name: 'c'; expected one of a, b"):
        find_socket("c", tmp_path)
