"""Orders on their way from the control socket to the loop: a whole controller on cgroups and scripted telemetry."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slicepilot.configs import ConfigError
from slicepilot.controller.actuators.node import SliceTargets
from slicepilot.controller.actuators.quota import QuotaConfig
from slicepilot.controller.actuators.shadow import ShadowActuator
from slicepilot.controller.loop.live_backend import LiveBackend, NodeFacts
from slicepilot.controller.loop.node import Node
from slicepilot.controller.record.ring_reader import TickReader
from slicepilot.controller.service.control_client import ControlClient, ControlError
from slicepilot.controller.service.run_config import RunConfig
from slicepilot.controller.service.serve import serve
from slicepilot.controller.watchdog.journal import journal_path
from tests.controller.loop.scripted import SLICES, Asks, Readings, found, knobs

READY_S = 300.0  # of a first start, which compiles, on a machine that others use


class Running:
    """A controller in a child process, and what is known of it from outside."""

    def __init__(self, folder: Path, groups: list[Path]) -> None:
        self.folder, self.groups = folder, groups
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                self._run()
                status = 0
            except BaseException:  # noqa: BLE001 (the child must not go on as a test)
                traceback.print_exc()
            finally:
                os._exit(status)

    def _run(self) -> None:
        targets = [SliceTargets(name, path) for name, path in zip(SLICES.names, self.groups, strict=True)]
        facts = NodeFacts(0.01, uplink_mbps=1000)
        backend = LiveBackend(SLICES, Readings(), ShadowActuator(targets), self.groups, facts)
        node = Node("edge", "scripted", backend, targets, QuotaConfig(period_us=10_000))
        roots = {"run_root": str(self.folder / "run"), "state_root": str(self.folder / "state")}
        config = RunConfig().override(**roots, publish={"log": "off", "records_mb": 0.0, "estimate_s": 0.0})
        serve(node, config, agent=Asks(lambda k: knobs(400.0)))
        backend.close()

    def wait_for(self, what: Callable[[], bool]) -> None:
        until_s = time.monotonic() + READY_S
        while not what():
            assert os.waitpid(self.pid, os.WNOHANG) == (0, 0), "it has ended"
            assert time.monotonic() < until_s
            time.sleep(0.2)

    def ask(self, **order: Any) -> dict[str, Any]:
        with ControlClient(self.folder / "run" / "edge" / "control.sock") as client:
            return client.request(order)

    def ticks(self) -> int:
        try:
            reader = TickReader(self.folder / "run" / "edge" / "ticks")
        except ConfigError:
            return 0
        try:
            return reader.written
        finally:
            reader.close()


@pytest.fixture
def controller(groups: list[Path]) -> Iterator[Running]:
    folder = Path(tempfile.mkdtemp(prefix="slicepilot-orders-"))  # the publisher's user may enter it
    folder.chmod(0o755)
    running = Running(folder, groups)
    try:
        running.wait_for(lambda: running.ticks() > 5)
        yield running
    finally:
        os.kill(running.pid, signal.SIGTERM)
        status = os.waitstatus_to_exitcode(os.waitpid(running.pid, 0)[1])
        shutil.rmtree(folder)
    assert status == 0, "it has restored and ended"


def test_orders_reach_the_loop_and_what_it_moves_comes_back(controller: Running) -> None:
    original = [found(group) for group in controller.groups]
    assert controller.ask(command="status")["status"]["mode"] == "shadow"
    answer = controller.ask(command="mode", mode="live")
    assert (answer["mode"], answer["slices"]) == ("live", list(SLICES.names))
    journal = journal_path(controller.folder / "state" / "edge")
    assert journal.exists()
    assert controller.ask(command="safe")["ordered_safe"]
    assert controller.ask(command="pause")["paused"]
    assert not controller.ask(command="resume")["paused"]
    os.kill(controller.pid, signal.SIGUSR1)
    controller.wait_for(lambda: not journal.exists())
    controller.wait_for(lambda: controller.ask(command="status")["status"]["mode"] == "shadow")
    assert [found(group) for group in controller.groups] == original
    with pytest.raises(ConfigError, match=r"mode = 'on'; "):
        controller.ask(command="mode", mode="on")
    with pytest.raises(ControlError, match=r"an absolute path below|out of the declared"):
        controller.ask(command="reload", guard="/etc/shadow/")
