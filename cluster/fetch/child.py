"""Children that fetch: they are asked by a line of JSON, and answer with the files of a bundle or a line why not.

What a child reads is anybody's (a container's volume, a registry's answers) and may take it over, hang it or have it
take all memory. So it has next to no privileges, ends in time, and its own answer is believed no more than that of
whoever it asked: names, sizes and text are checked here.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slicepilot.agents.learned.files import LIMITS_BYTES
from slicepilot.configs import ConfigError, FailureError
from slicepilot.controller.system.own_programs import environment, python

MOST_HEAD = 4096
MOST_TEXT = 400
CHUNK = 1 << 16
GONE_S = 5.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class FetchError(FailureError):
    """It could not be fetched; the message is one line."""


def ask(module: str, request: Mapping[str, Any], seconds: float) -> dict[str, bytes]:
    """Have a module's child fetch the files of a bundle, those of `LIMITS_BYTES` that there are.

    Args:
        module: its name; run with `answer`.
        request: JSON, secrets included: no other process reads standard input.
        seconds: until it is killed.

    Raises:
        FetchError: it refused, did not end in time, or gave no answer that can be used.
    """
    try:
        process = subprocess.Popen(
            [*python(module), str(os.getpid())],
            cwd="/",
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise FetchError(f"no process can be started: {error.strerror}") from error
    assert process.stdin is not None
    assert process.stdout is not None
    until_s = time.monotonic() + seconds
    try:
        with contextlib.suppress(BrokenPipeError), process.stdin as line:
            line.write(json.dumps(request).encode() + b"\n")
        with process.stdout as out:
            head = bytearray()
            while not head.endswith(b"\n"):
                head += _some(out.fileno(), 1, until_s)
                if len(head) > MOST_HEAD:
                    raise FetchError("no answer that can be used")
            return _files(_parsed(bytes(head)), out.fileno(), until_s)
    finally:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel waits for a disk: it ends when that answers
            process.wait(GONE_S)


def _parsed(head: bytes) -> dict[str, Any]:
    try:
        found = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise FetchError("no answer that can be used") from error
    if not isinstance(found, dict):
        raise FetchError("no answer that can be used")
    if "refused" in found:
        raise FetchError(line_of(str(found["refused"])))
    return found


def _files(head: Mapping[str, Any], descriptor: int, until_s: float) -> dict[str, bytes]:
    sizes, found = head.get("files"), dict[str, bytes]()
    if not isinstance(sizes, dict):
        raise FetchError("no answer that can be used")
    for name, size in sizes.items():
        if name not in LIMITS_BYTES or type(size) is not int or not 0 <= size <= LIMITS_BYTES[name]:
            raise FetchError("no answer that can be used")
        data = bytearray()
        while len(data) < size:
            data += _some(descriptor, min(CHUNK, size - len(data)), until_s)
        found[name] = bytes(data)
    return found


def _some(descriptor: int, most: int, until_s: float) -> bytes:
    """At least a byte, in time."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(descriptor, selectors.EVENT_READ)
        if not waiting.select(max(0.0, until_s - time.monotonic())):
            raise FetchError("it took too long")
    data = os.read(descriptor, most)
    if not data:
        raise FetchError("it ended without an answer")
    return data


def line_of(text: str) -> str:
    """For conditions: whoever is asked chooses what it says."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * MOST_TEXT])
    return " ".join(printable.split())[:MOST_TEXT]


def answer(
    prepare: Callable[[dict[str, Any]], Callable[[], Mapping[str, bytes]]],
    memory_bytes: int,
    confine: Callable[[], object] = lambda: None,
) -> None:
    """The child's side.

    Args:
        prepare: gets the request, gives up privileges, and returns what fetches.
        memory_bytes: at most, on top of what it has taken to start.
        confine: to fewer system calls and files, last.
    """
    parent = int(sys.argv[1])
    request = json.loads(sys.stdin.buffer.readline())
    try:
        fetch = prepare(request)
        _hold(parent, memory_bytes)
        confine()
        files = fetch()
    except (ConfigError, FailureError) as error:
        _say({"refused": str(error)})
    except (ArithmeticError, EOFError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError) as error:
        _say({"refused": f"{type(error).__name__}: {error}"})
    else:
        _say({"files": {name: len(data) for name, data in files.items()}})
        for data in files.values():
            sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _say(head: Mapping[str, Any]) -> None:
    text = {key: line_of(value) if isinstance(value, str) else value for key, value in head.items()}
    sys.stdout.buffer.write(json.dumps(text).encode() + b"\n")
    sys.stdout.buffer.flush()


def _hold(parent: int, memory_bytes: int) -> None:
    """Limits, and an end with the parent: set now, since a change of user would have undone that."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal.SIGKILL, 0, 0, 0)))
    if os.getppid() != parent:
        sys.exit(1)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()  # proc_pid_statm(5)
    for limit, value in (
        (resource.RLIMIT_AS, used + memory_bytes),
        (resource.RLIMIT_CPU, int(time.process_time()) + 30),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
