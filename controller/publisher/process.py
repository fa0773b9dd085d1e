"""The publisher: ``python -m slicepilot.controller.publisher.process``, started by `handle`.

It follows the ring of ticks and does everything that the loop must not: metrics and status page, control socket, logs,
decision records, estimates. It opens what it needs, then gives up all privileges. It ends when the control connection
closes, after it has taken in the last ticks and written them; signals that ask processes to end are for the controller,
which may have ticks to tell for as long as it lives.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicepilot.configs import ConfigError, did_you_mean
from slicepilot.controller.record.ring_reader import TickReader
from slicepilot.controller.system import privileges
from slicepilot.controller.system.confinement.processes import OFF, confine_publisher
from slicepilot.controller.system.realtime import stay_in_the_background
from slicepilot.controller.system.signals import STOPPING, SWITCHING

from .api import ControlApi
from .events import EventLog
from .link import LoopLink
from .listeners import HttpAddress
from .logs import FORMS, EventLogger, configure
from .metrics.collector import Metrics
from .metrics.exposition import FRESH_S
from .outlet import Outlet
from .pages import routes
from .peers import Access
from .recorder import Recorder
from .state.status import Status
from .state.totals import Totals
from .web import Page, Route, WebServer

POLL_S = 1.0
"""A look at the ring costs about as much for many ticks as for few, and the ring holds at least eight seconds. Whoever
looks at us meanwhile has us look, too."""
WAIT_S = 0.05


@dataclass(frozen=True)
class Sockets:
    """What was inherited: listening sockets and the connection to the loop's process."""

    control: socket.socket
    link: socket.socket
    http: socket.socket | None


class PublisherProcess:
    """Everything that runs here, on one event loop and one thread for the disk."""

    def __init__(
        self,
        reader: TickReader,
        sockets: Sockets,
        access: Access,
        recorder: Recorder,
        log: EventLogger,
        outlet: Outlet,
        hosts: tuple[str, ...] = (),
    ) -> None:
        self._reader, self._sockets, self._recorder, self._outlet = reader, sockets, recorder, outlet
        self._done = asyncio.Event()
        self._status = status = Status(reader.num_slices)
        self._totals = Totals(reader.num_slices)
        self._events = EventLog(log, status, HttpAddress.of(sockets.http))
        self._link = LoopLink(sockets.link, self._done.set)
        self._updated_s = float("-inf")
        self._api = ControlApi(sockets.control, access, status, self._refresh, self._link.forward, self._events.command)
        self._web = None if sockets.http is None else WebServer(sockets.http, self._fresh_routes(), hosts)

    def confined(self, how: str) -> None:
        """Have it in the status how this process is confined."""
        self._status.confined = how

    def warm_up(self) -> None:
        """Show what there is, and what was meant, so that nothing has to be imported any more afterwards."""
        did_you_mean("", ())
        for page in self._routes().values():
            page({})

    async def run(self) -> int:
        """Until the controller has gone; returns the exit code."""
        self._outlet.start()
        self._recorder.start()
        self._link.start()
        await self._api.start()
        if self._web is not None:
            await self._web.start()
        self._update()
        while not self._done.is_set() and self._recorder.failure is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._done.wait()
            self._update()
        await self._close()
        return 0 if self._recorder.failure is None else 1

    def _routes(self) -> dict[str, Route]:
        return routes(self._status, Metrics(self._status, self._totals, self._figures))

    def _fresh_routes(self) -> dict[str, Route]:
        """The pages, brought up to date when they are asked for."""

        def fresh(page: Route) -> Route:
            def show(headers: dict[str, str]) -> Page:
                self._refresh()
                return page(headers)

            return show

        return {path: fresh(page) for path, page in self._routes().items()}

    def _refresh(self) -> None:
        """Update what is not fresh any more."""
        if time.monotonic() - self._updated_s >= FRESH_S:
            self._update()

    def _update(self) -> None:
        status, self._updated_s = self._status, time.monotonic()
        records = status.update(self._reader)
        status.estimate = self._recorder.estimate
        self._totals.add(records, status.description)
        self._recorder.add(records, status.description, status.generation)
        self._events.update(records)

    async def _close(self) -> None:
        for server in (self._api, self._web):
            if server is not None:
                await server.close()
        self._link.close()
        self._recorder.close()

    def _figures(self) -> dict[str, tuple[float, str]]:
        figures = self._recorder.figures()
        figures["log_lines_lost_total"] = float(self._outlet.lost), "Lines of the log that nobody took in time."
        figures["api_requests_total"] = float(self._api.requests), "Lines that clients of the control socket sent."
        figures["api_refused_total"] = float(self._api.refused), "Lines and clients of it that were turned down."
        if self._web is not None:
            figures["http_requests_total"] = float(self._web.requests), "Pages served."
            figures["http_refused_total"] = float(self._web.refused), "HTTP connections that got no page."
        return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the process; 2 for bad input, as everywhere."""
    given = _parser().parse_args(arguments)
    outlet = Outlet(sys.stderr.fileno())
    log = configure(given.log, outlet=outlet)
    for number in (*STOPPING, *SWITCHING):  # a service manager sends them to all processes at once
        signal.signal(number, signal.SIG_IGN)
    try:
        publisher = _prepare(given, log, outlet)
        return 0 if publisher is None else asyncio.run(publisher.run())
    except ConfigError as error:
        log.error("publisher", error=str(error))
        return 2
    finally:
        outlet.stop()


def _prepare(given: argparse.Namespace, log: EventLogger, outlet: Outlet) -> PublisherProcess | None:
    """Everything that needs privileges; then there are none. None if the controller has gone meanwhile."""
    # Otherwise Arrow's allocator starts a thread when it is loaded, which would keep the privileges of that time.
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    stay_in_the_background(given.off_cpu)
    http = None if given.http_fd is None else socket.socket(fileno=given.http_fd)
    sockets = Sockets(socket.socket(fileno=given.api_fd), socket.socket(fileno=given.control_fd), http)
    access = Access(os.getuid(), given.group)
    reader = TickReader(given.ring)
    recorder = Recorder(given.records, given.records_mb, given.estimate_s, log)
    description = _described(reader, sockets.link)
    if description is None:
        return None
    if given.records_mb or given.estimate_s:
        recorder.warm_up(description, reader.num_slices)
    publisher = PublisherProcess(reader, sockets, access, recorder, log, outlet, tuple(given.host))
    publisher.warm_up()
    privileges.drop_all(given.user)
    publisher.confined(confine_publisher([given.records] if given.records_mb else []) if given.harden else OFF)
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
