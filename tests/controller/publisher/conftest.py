"""A controller as its publisher sees it: a ring with ticks, notes, and somebody who takes orders."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.configs import ConfigError
from slicepilot.controller.contracts.orders import ID_BYTES, parse, refusal
from slicepilot.controller.publisher.handle import Publisher, PublisherOptions
from slicepilot.controller.record.ring import Tick, TickRing
from slicepilot.controller.record.ring_reader import TickReader
from slicepilot.controller.service.control_client import ControlClient
from slicepilot.controller.telemetry.layout import BUCKETS
from slicepilot.env.knobs import Knobs
from slicepilot.env.telemetry import Telemetry
from tests.controller.record.conftest import SLICES, running

PERIOD_NS = 10_000_000
READY_S = 30.0


class Controller:
    """Writes what a test wants; time goes on by a period with each tick."""

    def __init__(self, folder: Path, count: int = 5) -> None:
        self.run, self.state = folder / "run", folder / "state"
        self.run.mkdir()
        self.state.mkdir()
        folder.chmod(0o755)
        self.count, self.sequence = count, 0
        specs = [dataclasses.replace(SLICES.slices[k % 5], name=f"slice{k + 1}") for k in range(count)]
        self.description = running(specs)
        self.notes: dict[str, Any] = {"mode": "live", "canary": [], "unmeasured": [], "foreign": []}
        self.ring = TickRing(self.run / "ticks", count)
        self.ring.describe(self.description)
        self.ring.note(self.notes)
        self.telemetry = Telemetry.empty(count)
        self.telemetry.slices[:2] = 40.0
        self.telemetry.slices[2:4] = 800.0
        self.wanted = self.allowed = self.applied = Knobs.none(count)
        self.reasons = np.zeros(count, np.uint32)
        self.counts = np.zeros((count, BUCKETS), np.uint32)
        self.now_ns = time.monotonic_ns()
        self.orders: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda order: {"ok": True, "mode": "live"}
        self.publisher: Publisher | None = None
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def tick(self, ticks: int = 1, **scalars: int) -> None:
        fields = {"mode": 1, "wakeup_ns": 5_000, "observe_ns": 40_000, "infer_ns": 20_000, "guard_ns": 10_000}
        for _ in range(ticks):
            self.now_ns += PERIOD_NS
            tick = Tick(time_ns=time.time_ns(), monotonic_ns=self.now_ns, apply_ns=30_000, **(fields | scalars))
            self.ring.write(tick, self.telemetry, self.wanted, self.allowed, self.applied, self.reasons)
        self.sequence += ticks

    def note(self, **notes: Any) -> None:
        self.notes = self.notes | notes
        self.ring.note(self.notes)

    def reader(self) -> TickReader:
        return TickReader(self.run / "ticks")

    def publish(self, **options: Any) -> Publisher:
        """Start a publisher, without records and logs unless given in options, and take orders from it."""
        given = {"listen": "127.0.0.1:0", "records_mb": 0.0, "estimate_s": 0.0, "log": "off"} | options
        self.publisher = Publisher.start(PublisherOptions(run=self.run, state=self.state, **given), self.theirs)
        threading.Thread(target=self._take_orders, daemon=True).start()
        self.ask({"command": "status"})  # answered as soon as it is ready: connections wait
        return self.publisher

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        with ControlClient(self.run / "control.sock", READY_S) as client:
            return client.request(order)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(READY_S)
        connection.connect(str(self.run / "control.sock"))
        return connection

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        assert self.publisher is not None
        connection = http.client.HTTPConnection("127.0.0.1", self.publisher.http_port, timeout=READY_S)
        with contextlib.closing(connection):
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Write ticks in real time meanwhile."""
        done = threading.Event()

        def write() -> None:
            while not done.wait(PERIOD_NS / 1e9):
                self.tick()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def go(self) -> None:
        """Close the connection, as a controller that dies does."""
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        self._ours.close()

    def close(self) -> None:
        self.go()
        if self.publisher is not None:
            self.publisher.stop()
        else:
            self.theirs.close()
        self.ring.close()

    def _take_orders(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._ours.recv(1 << 17):
                number, line = data[:ID_BYTES], data[ID_BYTES:]
                answer: dict[str, Any] | None
                try:
                    parse(line, [f"slice{k + 1}" for k in range(self.count)])
                except ConfigError as error:
                    answer = refusal(str(error), "input")
                else:
                    self.orders.append(json.loads(line))
                    answer = self.answer(self.orders[-1])
                if answer is not None:
                    reason = {} if answer["ok"] else {"reason": "refused"}
                    self._ours.send(number + json.dumps(reason | answer).encode())


@contextlib.contextmanager
def _factory() -> Iterator[Callable[..., Controller]]:
    with contextlib.ExitStack() as undo:

        def item(count: int = 5) -> Controller:
            # Not in pytest's own folder, which the publisher's user may not enter.
            controller = Controller(Path(undo.enter_context(tempfile.TemporaryDirectory())), count)
            undo.callback(controller.close)
            return controller

        yield item


@pytest.fixture
def make() -> Iterator[Callable[..., Controller]]:
    """Controllers of any number of slices."""
    with _factory() as make:
        yield make


@pytest.fixture
def controller(make: Callable[..., Controller]) -> Controller:
    return make()


@pytest.fixture(scope="module")
def published() -> Iterator[Controller]:
    """One with a publisher, that the tests of a module share."""
    with _factory() as make:
        controller = make()
        controller.tick(20)
        controller.publish(hosts=("probe.example",), group="daemon")
        yield controller


def raw(port: int, data: bytes) -> bytes:
    """What a server answers to these bytes until it hangs up."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), 10.0) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                answer += part
    return answer
