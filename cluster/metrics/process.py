"""``python -m slicepilot.cluster.metrics.process``, started by `handle`: serves the metrics of an agent and its loops.

It has a listening socket and a connection to the agent, by which the agent says which loops there are; no token, no
client of the API, no privileges, and no right to open files but Python's. When somebody scrapes, each loop's publisher
is asked. It ends when the agent does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence

from slicepilot.controller.publisher.pages import PageServer
from slicepilot.controller.system import privileges
from slicepilot.controller.system.confinement import confine_publisher
from slicepilot.controller.system.realtime import stay_in_the_background
from slicepilot.controller.system.signals import STOPPING, SWITCHING

from .asking import AskError, ask
from .figures import WHOSE, AgentFacts, exposed, read
from .joining import Joined

FRESH_S = 1.0
"""All who ask within this time get the same: hundreds of scrapers cost the loops' publishers no more than one."""
MOST_MESSAGE = 1 << 18
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class MetricsProcess:
    """All that runs here, on one event loop.

    Args:
        http: listening.
        link: to the agent; SOCK_SEQPACKET.
    """

    def __init__(self, http: socket.socket, link: socket.socket) -> None:
        self._link, self._done = link, asyncio.Event()
        self._facts: AgentFacts | None = None
        self._body, self._made_s = b"", float("-inf")
        self._making: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._http = PageServer(http, {"/metrics": self._page})

    async def run(self) -> None:
        """Until the agent has gone."""
        self._link.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._link, self._hear)
        self._http.start("http")
        await self._done.wait()

    def _hear(self) -> None:
        try:
            message = self._link.recv(MOST_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            asyncio.get_running_loop().remove_reader(self._link)
            self._done.set()
            return
        with contextlib.suppress(ValueError, TypeError, KeyError):
            self._facts = read(message)

    def _page(self, accept: str) -> tuple[bytes, dict[str, str]]:
        """In a thread of the server's."""
        del accept
        asyncio.run_coroutine_threadsafe(self._prepared(), self._loop).result()
        return self._body or b"the agent has reported nothing yet\n", {"Content-Type": TEXT}

    async def _prepared(self) -> None:
        if self._making is None and time.monotonic() - self._made_s >= FRESH_S:
            self._making = asyncio.create_task(self._make())
        if self._making is not None:
            await asyncio.shield(self._making)

    async def _make(self) -> None:
        try:
            if (facts := self._facts) is not None:
                self._body = await rendered(facts)
                self._made_s = time.monotonic()
        finally:
            self._making = None


async def rendered(facts: AgentFacts) -> bytes:
    """The metrics of all that answer, and the agent's own."""
    running = [one for one in facts.loops if one.socket]
    texts = await asyncio.gather(*(ask(one.socket) for one in running), return_exceptions=True)
    joined, served = Joined(), dict[str, bool]()
    for one, text in zip(running, texts, strict=True):
        if isinstance(text, str):
            with contextlib.suppress(ValueError):
                joined.add(text, dict(zip(WHOSE, one.labels, strict=True)))
                served[one.loop] = True
        elif not isinstance(text, AskError):
            raise text
    joined.add(exposed(facts, served, time.process_time), {})
    return joined.text.encode()


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(prog="slicepilot-agent-metrics", allow_abbrev=False)
    parser.add_argument("--http-fd", type=int, required=True, help="listening socket")
    parser.add_argument("--link-fd", type=int, required=True, help="connection to the agent")
    given = parser.parse_args(arguments)
    http, link = socket.socket(fileno=given.http_fd), socket.socket(fileno=given.link_fd)
    for number in (*STOPPING, *SWITCHING):  # for the agent
        signal.signal(number, signal.SIG_IGN)
    stay_in_the_background()
    exposed(AgentFacts("", "", 0.0, 0.0), {}, time.process_time)  # so that nothing has to be imported any more
    privileges.drop_all()
    told = {"event": "metrics", "pid": os.getpid(), "uid": os.getuid(), "confined": confine_publisher([])}
    with contextlib.suppress(OSError):
        print(json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **told}), file=sys.stderr)
    asyncio.run(_run(http, link))
    return 0


async def _run(http: socket.socket, link: socket.socket) -> None:
    await MetricsProcess(http, link).run()


if __name__ == "__main__":
    sys.exit(main())
