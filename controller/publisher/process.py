"""The publisher: ``python -m slicepilot.controller.publisher.process``, started by `handle`.

It follows the ring of ticks and does everything that the loop must not: metrics and status page, control socket, logs,
decision records, estimates. It opens what it needs, then gives up all privileges. It ends when the control connection
closes, after it has taken in the last ticks and written them; signals that ask processes to end are for the controller,
which may have ticks to tell for as long as it lives.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
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
from .listeners import Access, HttpAddress, Peer
from .logs import FORMS, EventLogger, NonBlockingLogHandler, configure
from .metrics import Metrics
from .pages import FRESH_S, Page, PageServer, Rendered, pages_of
from .recorder import Recorder
from .status import Status

P = ParamSpec("P")
T = TypeVar("T")
POLL_S = 1.0
"""A look at the ring costs about as much for many ticks as for few, and the ring holds at least eight seconds. A client
that comes meanwhile makes this process look, too."""
WAIT_S, STATUS_FRESH_S = 0.05, 0.05


class PublisherProcess:
    """Everything that runs here: this thread follows the ring, others serve clients, and one writes to the disk.

    Args:
        reader: of the controller's ring.
        control: listening control socket; link: connection to the controller; http: listening, if there is one.
        access: which users may give orders.
        recorder: for decision records and estimates.
        log, handler: for events.
        hosts: names by which the node is reached over HTTP.
    """

    def __init__(
        self,
        reader: TickReader,
        control: socket.socket,
        link: socket.socket,
        http: socket.socket | None,
        access: Access,
        recorder: Recorder,
        log: EventLogger,
        handler: NonBlockingLogHandler,
        hosts: tuple[str, ...] = (),
    ) -> None:
        self._reader, self._recorder, self._handler = reader, recorder, handler
        self._ended, self._updating = threading.Event(), threading.Lock()
        self.status = status = Status(reader.num_slices)
        self._totals = Totals(reader.num_slices)
        self._events = EventLog(log, status, HttpAddress.of(http))
        self._link = ControllerLink(link, self._ended)
        self._updated_s = float("-inf")
        # Many clients at once get the same: one document takes milliseconds to make.
        status_answer = Rendered(
            lambda: json.dumps({"ok": True, "status": status.document(0)}).encode(), STATUS_FRESH_S
        )
        self._control = ControlSocket(control, access, self._fresh(status_answer.body), self._link.ask, self._report)
        fresh = {path: self._fresh(page) for path, page in self._pages().items()}
        self._http = None if http is None else PageServer(http, fresh, hosts)

    def warm_up(self) -> None:
        """Make every page once, so that nothing has to be imported any more afterwards."""
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
        """The same, by one thread at a time, of what is so when it is called."""

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
        figures, control, http = self._recorder.figures(), self._control, self._http
        figures["log_lines_lost_total"] = float(self._handler.lost), "Log lines that found no room."
        figures["api_requests_total"] = float(control.requests), "Lines from clients of the control socket."
        figures["api_refused_total"] = float(control.refused), "Lines and clients of it that were refused."
        if http is not None:
            figures["http_requests_total"] = float(http.requests), "Pages served."
            figures["http_refused_total"] = float(http.refused), "HTTP connections that got no page."
        return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the process; 2 for bad input, as everywhere."""
    options = _parser().parse_args(arguments)
    handler = NonBlockingLogHandler(sys.stderr.fileno())
    log = configure(options.log, non_blocking=handler)
    for number in (*STOPPING, *SWITCHING):  # a service manager sends them to all processes at once
        signal.signal(number, signal.SIG_IGN)
    try:
        publisher = _prepare(options, log, handler)
        return 0 if publisher is None else publisher.run()
    except ConfigError as error:
        log.error("publisher", error=str(error))
        return 2
    finally:
        handler.stop()


def _prepare(options: argparse.Namespace, log: EventLogger, handler: NonBlockingLogHandler) -> PublisherProcess | None:
    """Everything that needs privileges; then there are none. None if the controller has gone meanwhile."""
    # Otherwise Arrow's allocator starts a thread when it is loaded, which would keep the privileges of that time.
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    stay_in_the_background(options.off_cpu)
    http = None if options.http_fd is None else socket.socket(fileno=options.http_fd)
    control, link = socket.socket(fileno=options.api_fd), socket.socket(fileno=options.control_fd)
    access = Access(os.getuid(), options.group)
    reader = TickReader(options.ring)
    recorder = Recorder(options.records, options.records_mb, options.estimate_s, log)
    description = _described(reader, link)
    if description is None:
        return None
    if options.records_mb or options.estimate_s:
        recorder.warm_up(description, reader.num_slices)
    publisher = PublisherProcess(reader, control, link, http, access, recorder, log, handler, tuple(options.host))
    publisher.warm_up()
    privileges.drop_all(options.user)
    writable = [options.records] if options.records_mb else []
    publisher.status.confined = confine_publisher(writable) if options.harden else OFF
    return publisher


def _described(reader: TickReader, link: socket.socket) -> dict[str, Any] | None:
    """The run's description as soon as there is one: the controller starts us before it loads its policy."""
    while not (description := reader.description()[1]):
        if select.select([link], [], [], WAIT_S)[0] and not link.recv(1, socket.MSG_PEEK):
            return None
    return description


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="slicepilot-publisher", allow_abbrev=False)
    parser.add_argument("--ring", type=Path, required=True, help="ticks of the controller")
    parser.add_argument("--control-fd", type=int, required=True, help="connection to the controller")
    parser.add_argument("--api-fd", type=int, required=True, help="listening control socket")
    parser.add_argument("--http-fd", type=int, help="listening HTTP socket")
    parser.add_argument("--host", action="append", default=[], help="name the node is reached by over HTTP")
    parser.add_argument("--off-cpu", type=int, help="CPU to keep off")
    parser.add_argument("--no-harden", dest="harden", action="store_false", help="without filter and file rules")
    parser.add_argument("--group", help="whose members may use the control socket")
    parser.add_argument("--user", help="to run as")
    parser.add_argument("--records", type=Path, required=True, help="folder of decision records")
    parser.add_argument("--records-mb", type=float, default=0.0, help="disk space for them")
    parser.add_argument("--estimate-s", type=float, default=0.0, help="seconds from estimate to estimate in shadow")
    parser.add_argument("--log", choices=FORMS, default="json", help="form of the log")
    return parser


if __name__ == "__main__":
    sys.exit(main())
