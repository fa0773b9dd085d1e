"""A controller starts ahead of ordinary processes, alone and not for long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.live, pytest.mark.skipif(os.geteuid() != 0, reason="needs root for SCHED_RR")]

BEGIN = """
import json, os, resource, time
from slicepilot.controller.system import realtime
STARTING = os.SCHED_RR | os.SCHED_RESET_ON_FORK
def limit(): return resource.getrlimit(resource.RLIMIT_RTTIME)
before = limit()
"""


def run(code: str) -> Any:
    """What a program of its own prints as JSON."""
    command = [sys.executable, "-c", BEGIN + code]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)


def test_it_is_ahead_until_it_stops_and_what_it_starts_is_not() -> None:
    code = """
realtime.start_ahead()
ahead = os.sched_getscheduler(0) == STARTING
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, bytes([os.sched_getscheduler(0)]))
    os._exit(0)
child = os.read(reader, 1)[0]
realtime.stop_being_ahead()
left = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
print(json.dumps([ahead, child, left, limit() == before]))
"""
    assert run(code) == [True, os.SCHED_OTHER, os.SCHED_OTHER, True]


def test_what_compiles_for_seconds_becomes_ordinary() -> None:
    code = """
realtime.START_RT_US = 200_000
realtime.start_ahead()
begun = time.monotonic()
while os.sched_getscheduler(0) == STARTING and time.monotonic() < begun + 30:
    pass
print(json.dumps([os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, limit() == before]))
"""
    assert run(code) == [os.SCHED_OTHER, True]


def test_stopping_what_never_began_changes_nothing() -> None:
    assert run("realtime.stop_being_ahead()\nprint(json.dumps(os.sched_getscheduler(0)))") == os.SCHED_OTHER


def test_without_permission_it_starts_as_others_do() -> None:
    code = """
resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
realtime.start_ahead()
print(json.dumps([os.sched_getscheduler(0), limit() == before]))
"""
    assert run(code) == [os.SCHED_OTHER, True]


def test_under_a_limit_at_which_it_would_be_killed_it_starts_as_others_do() -> None:
    code = """
resource.setrlimit(resource.RLIMIT_RTTIME, (200_000, 200_000))
realtime.start_ahead()
print(json.dumps([os.sched_getscheduler(0), limit()]))
"""
    assert run(code) == [os.SCHED_OTHER, [200_000, 200_000]]
