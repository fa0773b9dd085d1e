"""Commands of slicepilot, each in a process of its own that has everything imported already.

A new interpreter imports for seconds before a command begins. Here one server does so, and forks for every command:
it has its own process, arguments, working folder, environment, standard streams and exit code, as from a shell.
Tests of what starting does (signals during imports, PYTHONPATH, a process's name) start a new interpreter.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_IMPORTS = ("numpy", "numba", "pyarrow.parquet", "slicepilot.cli.app", "slicepilot.env.environments.slice_env")


def slicepilot(
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str = "",  # noqa: A002 (as `subprocess.run` calls it)
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run a command as ``subprocess.run(["slicepilot", ...], capture_output=True, text=True)`` would.

    Raises:
        subprocess.TimeoutExpired: it took longer, and was killed.
    """
    command = [str(argument) for argument in arguments]
    with (
        tempfile.TemporaryFile("w+") as stdin,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        stdin.write(input)
        stdin.seek(0)
        request = {"command": command, "cwd": str(cwd or Path.cwd()), "env": dict(os.environ if env is None else env)}
        client, served = socket.socketpair()
        with client, served:
            streams = [stdin.fileno(), out.fileno(), err.fileno(), served.fileno()]
            socket.send_fds(_server(), [b"fork"], streams)
            client.settimeout(timeout)
            client.sendall(json.dumps(request).encode() + b"\n")
            with client.makefile() as answers:
                pid = int(answers.readline())
                try:
                    code = int(answers.readline())
                except TimeoutError:
                    os.kill(pid, 9)
                    raise subprocess.TimeoutExpired(command, timeout) from None
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["slicepilot", *command], code, out.read(), err.read())


@cache
def _server() -> socket.socket:
    """The connection to this process's server, which ends when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], start_new_session=True
        )

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def _serve(requests: socket.socket) -> None:
    for name in _IMPORTS:
        __import__(name)
    while True:
        message, streams, _, _ = socket.recv_fds(requests, 16, 4)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            _report(streams)
        for descriptor in streams:
            os.close(descriptor)


def _report(streams: list[int]) -> None:
    """Fork the command, say its process id and then its exit code."""
    *standard, connection = streams
    with socket.socket(fileno=connection) as answers:
        request: dict[str, Any] = json.loads(answers.makefile().readline())
        pid = os.fork()
        if pid == 0:
            answers.detach()
            os.setsid()
            for number, descriptor in enumerate(standard):
                os.dup2(descriptor, number)
            os.closerange(3, max(*streams) + 1)
            _run(request)
        answers.sendall(f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        answers.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _run(request: dict[str, Any]) -> None:
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["slicepilot", *request["command"]]
    from slicepilot.cli import main

    main()


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
