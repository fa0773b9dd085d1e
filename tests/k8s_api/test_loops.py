"""Loops as processes of their agent: what they leave behind, and their modes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicepilot.cluster.loops import process as times
from slicepilot.cluster.loops.manager import LoopManager
from slicepilot.cluster.plan.plan import LoopPlan, SetPlan
from slicepilot.cluster.resources.slice_set import Identity
from slicepilot.controller.actuators.bandwidth import bandwidth_files
from slicepilot.controller.system.cgroup import CpuGroup, CpuHierarchy
from slicepilot.controller.system.own_programs import ROOT
from slicepilot.controller.watchdog.journal import journal_path
from tests.controller.conftest import remove_group
from tests.controller.publisher.conftest import Controller
from tests.node.runtimes import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups, a publisher")
IDENTITY = Identity("video", "core", "uid", 1)
# A controller that has moved a limit and ends with its supervisor, or has none: its journal is all that is left.
DEAD = """
import sys
from pathlib import Path
from slicepilot.controller.actuators.quota import CpuQuota
from slicepilot.controller.actuators.slice_knobs import SliceTargets
from slicepilot.controller.actuators.bandwidth import bandwidth_files
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.watchdog.keeper import JournalKeeper
JournalKeeper(Path(sys.argv[1]), [SliceTargets("a", Path(sys.argv[2]))])
CpuQuota(CpuGroup.at(Path(sys.argv[2]))).set(300.0)
"""


def planned(mode: str = "shadow", instance: str = "core.video", **run: Any) -> list[SetPlan]:
    canary = ("slice1",) if mode == "canary" else ()
    return [SetPlan(IDENTITY, loop=LoopPlan(instance, {"name": "edge"}, run, mode, canary))]


@pytest.fixture(name="group")
def _group() -> Iterator[Path]:
    group = CpuHierarchy.find().root / f"spl{os.getpid()}"
    group.mkdir()
    yield group
    remove_group(group)


@contextlib.contextmanager
def managing(folder: Path, lines: list[str]) -> Iterator[LoopManager]:
    manager = LoopManager(folder, (folder, folder / "state"), 0.0, lambda loop, text: lines.append(f"{loop}: {text}"))
    try:
        yield manager
    finally:
        manager.close()


def test_knobs_of_a_loop_that_has_died_with_its_supervisor_are_restored(group: Path, tmp_path: Path) -> None:
    """While the agent lives, and whether the loop can be started again or not."""
    state = tmp_path / "state" / "core.video"
    state.mkdir(parents=True)
    original = bandwidth_files(CpuGroup.at(group)).read()
    lines: list[str] = []
    with managing(tmp_path, lines) as manager:
        manager.reconcile(planned(period_ms=-1), time.monotonic())
        done = [sys.executable, "-c", DEAD, str(state), str(group)]
        subprocess.run(done, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert bandwidth_files(CpuGroup.at(group)).read() != original
        running = manager.states["uid"].process
        assert running is not None
        until(lambda: running.ended() is not None, "it does not end", 60.0)
        manager.reconcile([], time.monotonic())
        until(lambda: not journal_path(state).exists(), f"not restored: {lines}", 30.0)
    assert bandwidth_files(CpuGroup.at(group)).read() == original


def test_a_refused_mode_is_forgotten_when_the_slice_set_is_edited_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop may have carried out what it has not answered, so its mode is ordered again."""
    monkeypatch.setattr(times, "ORDER_AGAIN_S", 0.1)
    with tempfile.TemporaryDirectory() as name, contextlib.closing(Controller(Path(name))) as controller:
        controller.answer = lambda order: (
            {"ok": True} if order["mode"] == "shadow" else {"ok": False, "error": "never promoted"}
        )
        controller.tick()
        controller.publish()
        with managing(Path(name), []) as manager:

            def refused(mode: str) -> str | None:
                manager.read()
                manager.reconcile(planned(mode, controller.run.name), time.monotonic())
                return manager.states["uid"].refused

            refused("shadow")
            running = manager.states["uid"].process
            assert running is not None
            os.kill(running.pid, signal.SIGSTOP)  # the controller above is the loop
            try:
                controller.ring.describe(controller.description | {"pid": running.pid})
                until(lambda: refused("live") == "never promoted", "not refused", 20.0)
                until(lambda: refused("shadow") is None, "still refused", 20.0)
            finally:
                os.kill(running.pid, signal.SIGKILL)
        assert [order["mode"] for order in controller.orders if order["command"] == "mode"][-1] == "shadow"
