"""The publisher: ``python -m slicepilot.controller.publisher.process``, started by `handle`.

It follows the ring of ticks and does everything that would hold up the loop: metrics and status page, control socket,
logs, decision records, estimates. It opens what it needs, then gives up all privileges. It ends when the connection to
the controller closes, after it has written the last ticks; it ignores signals to end, which are for the controller.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from slicepilot.configs import ConfigError
from slicepilot.controller.contracts.orders import Answer
from slicepilot.controller.record.ring_reader import TickReader
from slicepilot.controller.system import privileges
from slicepilot.controller.system.confinement import OFF, confine_publisher
from slicepilot.controller.system.realtime import stay_in_the_background
from slicepilot.controller.system.signals import STOPPING, SWITCHING

from .control_socket import ControllerLink, ControlSocket
from .counts import Totals
from .events import EventLog
from .handle import PublisherOptions
from .listeners import Access, HttpAddress, Peer
from .logs import EventLogger, NonBlockingLogHandler, configure
from .metrics import Metrics
from .pages import FRESH_S, Page, PageServer, Rendered, pages_of
from .recorder import Recorder
from .status import Status

P = ParamSpec("P")
T = TypeVar("T")
POLL_S = 1.0
"""Reading many ticks costs about as much as reading few, and the ring holds at least eight seconds. A client's request
makes this process read the ring, too."""
WAIT_S, STATUS_FRESH_S = 0.05, 0.05


class PublisherProcess:
    """Everything that runs here: this thread follows the ring, others serve clients, and one writes to the disk.

    Args:
        reader: of the controller's ring.
        sockets: ``api``, the listening control socket; ``link``, the connection to the controller; and ``http``, a
            listening socket, if there are pages.
        access, recorder, log, handler, hosts: see their types, and `PageServer`.
    """

    def __init__(
        self,
        reader: TickReader,
        sockets: dict[str, socket.socket],
        access: Access,
        recorder: Recorder,
        log: EventLogger,
        handler: NonBlockingLogHandler,
        hosts: tuple[str, ...] = (),
    ) -> None:
        self._reader, self._recorder, self._handler = reader, recorder, handler
        self._ended, self._updating = threading.Event(), threading.Lock()
        self.status = status = Status(reader.num_slices, since_start=True)
        self._totals = Totals(reader.num_slices)
        http = sockets.get("http")
        self._events = EventLog(log, status, HttpAddress.of(http))
        self._link = ControllerLink(sockets["link"], self._ended)
        self._updated_s = float("-inf")
        # Many clients at once get the same: one document takes milliseconds to make.
        status_answer = Rendered(
            lambda: json.dumps({"ok": True, "status": status.document(0)}).encode(), STATUS_FRESH_S
        )
        answer = self._fresh(status_answer.body)
        self._control = ControlSocket(sockets["api"], access, answer, self._link.ask, self._report)
        fresh = {path: self._fresh(page) for path, page in self._pages().items()}
        self._http = None if http is None else PageServer(http, fresh, hosts)

    def warm_up(self) -> None:
        """Make every page once, so that everything is imported."""
        for page in self._pages().values():
            page("")

    def run(self) -> int:
        """Until the controller has gone; returns the exit code."""
        self._handler.start()
        self._recorder.start()
        self._link.start()
        self._control.start("control")
        if self._http is not None:
            self._http.start("http")
        while not self._ended.is_set() and self._recorder.failure is None:
            with self._updating:
                self._update()
            self._ended.wait(POLL_S)
        with self._updating:
            self._update()
            self._recorder.close()
        return 0 if self._recorder.failure is None else 1

    def _pages(self) -> dict[str, Page]:
        return pages_of(self.status, Metrics(self.status, self._totals, self._figures))

    def _fresh(self, make: Callable[P, T]) -> Callable[P, T]:
        """The same function under a lock, called with an up-to-date status."""

        def fresh(*args: P.args, **kwargs: P.kwargs) -> T:
            with self._updating:
                if time.monotonic() - self._updated_s >= FRESH_S:
                    self._update()
                return make(*args, **kwargs)

        return fresh

    def _update(self) -> None:
        status, self._updated_s = self.status, time.monotonic()
        records = status.update(self._reader)
        status.estimate = self._recorder.estimate
        self._totals.add(records, status.description)
        self._recorder.add(records, status.description, status.generation)
        self._events.update(records)

    def _report(self, peer: Peer, line: bytes, answer: Answer) -> None:
        with self._updating:
            self._events.command(peer, line, answer)

    def _figures(self) -> dict[str, tuple[float, str]]:
        figures, control, http = self._recorder.figures(self.status.lost), self._control, self._http
        figures["log_lines_lost_total"] = float(self._handler.lost), "Log lines that were dropped."
        figures["api_requests_total"] = float(control.requests), "Lines from clients of the control socket."
        figures["api_refused_total"] = (
            float(control.refused),
            "Refused lines and clients of the control socket.",
        )
        if http is not None:
            figures["http_requests_total"] = float(http.requests), "Pages served."
            figures["http_refused_total"] = float(http.refused), "HTTP connections that got no page."
        return figures


def main() -> int:
    """Entry point of the process; 2 for bad input, as everywhere."""
    given = json.loads(sys.argv[1])
    sockets = {name: socket.socket(fileno=fd) for name, fd in given.pop("fds").items()}
    run, state = (Path(given.pop(name)) for name in ("run", "state"))
    options = PublisherOptions(run=run, state=state, **given)
    handler = NonBlockingLogHandler(sys.stderr.fileno())
    log = configure(options.log, non_blocking=handler)
    for number in (*STOPPING, *SWITCHING):  # a service manager sends them to all processes at once
        signal.signal(number, signal.SIG_IGN)
    try:
        publisher = _prepare(options, sockets, log, handler)
        return 0 if publisher is None else publisher.run()
    except ConfigError as error:
        log.error("publisher", error=str(error))
        return 2
    finally:
        handler.stop()


def _prepare(
    options: PublisherOptions, sockets: dict[str, socket.socket], log: EventLogger, handler: NonBlockingLogHandler
) -> PublisherProcess | None:
    """Everything that needs privileges, which are given up then; None if the controller has gone meanwhile."""
    # Otherwise Arrow's allocator starts a thread when it is loaded, which would keep the privileges of that time.
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    stay_in_the_background(options.off_cpu)
    access = Access(os.getuid(), options.group)
    reader = TickReader(options.run / "ticks")
    if options.records_mb:  # from here on its folder needs no right to enter the folders above, such as /root
        os.chdir(options.records)
    recorder = Recorder(Path(), options.records_mb, options.estimate_s, log)
    description = _described(reader, sockets["link"])
    if description is None:
        return None
    if options.records_mb or options.estimate_s:
        recorder.warm_up(description, reader.num_slices)
    publisher = PublisherProcess(reader, sockets, access, recorder, log, handler, options.hosts)
    publisher.warm_up()
    privileges.drop_all(options.user)
    writable = [Path()] if options.records_mb else []
    publisher.status.confined = confine_publisher(writable) if options.harden else OFF
    return publisher


def _described(reader: TickReader, link: socket.socket) -> dict[str, Any] | None:
    """The run's description once it exists: the controller starts this process before it loads its policy."""
    while not (description := reader.description()[1]):
        if select.select([link], [], [], WAIT_S)[0] and not link.recv(1, socket.MSG_PEEK):
            return None
    return description


if __name__ == "__main__":
    sys.exit(main())
