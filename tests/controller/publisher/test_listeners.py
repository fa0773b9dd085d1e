"""The socket that a service manager passes (sd_listen_fds(3)), and managers that pass none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# As a manager starts it: the environment and descriptor 3; `{socket}` is what that is.
PROGRAM = """
import json, os, socket, sys
made = {socket}
os.dup2(made.fileno(), 3)
os.environ.update(json.loads(sys.argv[1]))
if os.environ.get("LISTEN_PID") == "own":
    os.environ["LISTEN_PID"] = str(os.getpid())
from slicepilot.configs import ConfigError
from slicepilot.controller.publisher.listeners import inherited_listener
try:
    got = inherited_listener()
except ConfigError as error:
    print(json.dumps(str(error)))
else:
    left = [name for name in os.environ if name.startswith("LISTEN_")]
    print(json.dumps([got.getsockname() == made.getsockname(), os.get_inheritable(got.fileno()), left]))
"""
LISTENING = "socket.create_server(('127.0.0.1', 0))"
VARIABLES = {"LISTEN_PID": "own", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "http"}


def handed_over(made: str, environment: dict[str, str]) -> object:
    command = [sys.executable, "-c", PROGRAM.format(socket=made), json.dumps(environment)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_the_managers_socket_is_taken_and_removed_from_the_environment() -> None:
    assert handed_over(LISTENING, VARIABLES) == [True, False, []]


@pytest.mark.parametrize(
    ("made", "environment", "problem"),
    [
        (LISTENING, {}, "the service manager has not passed exactly one socket"),
        (LISTENING, VARIABLES | {"LISTEN_PID": "1"}, "the service manager has not passed exactly one socket"),
        ("socket.socket()", VARIABLES, "descriptor 3 is no listening TCP socket"),
        ("open('/dev/null')", VARIABLES, "descriptor 3: Socket operation on non-socket"),
    ],
)
def test_anything_else_is_refused_in_one_line(made: str, environment: dict[str, str], problem: str) -> None:
    line = f"listen = 'inherited': {problem}; expected a socket from slicepilot@NAME.socket"
    assert handed_over(made, environment) == line
