"""``slicepilot top`` goes along with a controller that is slow, silent, gone or another one."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from slicepilot.controller.top.drawing import BLOCKS
from slicepilot.controller.top.frame import View, frame
from slicepilot.controller.top.screen import Follower

from .rings import Writer, shown


def test_a_controllers_restart_is_followed(path: Path) -> None:
    first = Writer(path, 5, "first")
    first.write()
    follower = Follower(path)
    assert follower.present
    assert not follower.stale
    first.telemetry.slices[1] = 33.0
    first.write()
    first.ring.close()
    follower.look()
    assert not follower.present
    assert follower.stale
    assert follower.status is not None
    document = follower.status.document()
    assert document["run"]["name"] == "first"
    assert document["slices"][0]["carried_mbps"] < 45, "its last ticks are shown"
    text = "\n".join(line.plain for line in frame(document, View(80, 24, BLOCKS, absent=True, stale=True)))
    assert "waiting for a controller" in text
    Writer(path, 3, "second").write()
    follower.look()
    assert follower.present
    assert not follower.stale
    assert follower.status.document()["run"]["name"] == "second"
    assert len(follower.status.document()["slices"]) == 3
    follower.close()


def test_a_controller_that_stops_beating_is_stale(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Writer(path).write()
    follower = Follower(path)
    assert not follower.stale
    later_ns = time.monotonic_ns() + 4_000_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    assert follower.stale
    lines = shown(path, stale=True)
    assert any(re.match(r"! no sign of life for [34]s", line) for line in lines)
    follower.close()
