"""``python -m slicepilot.cluster.metrics.process``, started by `handle`: serves the metrics of an agent and its loops.

It has a listening socket and a connection to the agent, which reports the loops there are; no token, no client of the
API, no privileges, and no files but Python's. At a scrape it requests the page of each loop's publisher. It ends when
the agent does.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Sequence

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from slicepilot.controller.publisher.pages import PageServer, Rendered
from slicepilot.controller.system import privileges
from slicepilot.controller.system.confinement import confine_publisher
from slicepilot.controller.system.realtime import stay_in_the_background
from slicepilot.controller.system.signals import STOPPING, SWITCHING

from .figures import LOOP_LABELS, AgentFacts, agent_metrics, read
from .merging import MergedPages

FRESH_S = 1.0
"""Scrapes within this time get the same page, so that a loop's publisher serves at most one a second."""
REQUEST_S = 1.5
REQUESTS = 8
MOST_PAGE_BYTES = 8 << 20  # of one loop; 64 slices make some 2 MiB
MOST_MESSAGE_BYTES = 1 << 18
TEXT = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def serve(http: socket.socket, link: socket.socket) -> None:
    """Serve until the agent has gone.

    Args:
        http: listening.
        link: to the agent; SOCK_SEQPACKET.
    """
    facts, lock = [AgentFacts("", "", 0.0, 0.0)], threading.Lock()
    body = Rendered(lambda: rendered(facts[0]), FRESH_S)

    def page(accept: str) -> tuple[bytes, dict[str, str]]:
        del accept
        with lock:
            return body.body(), {"Content-Type": TEXT}

    server, started = PageServer(http, {"/metrics": page}), False
    while message := _received(link):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            facts[0] = read(message)
            if not started:
                server.start("http")
                started = True


def _received(link: socket.socket) -> bytes:
    """The agent's next message; empty once it has gone."""
    try:
        return link.recv(MOST_MESSAGE_BYTES)
    except OSError:
        return b""


def rendered(facts: AgentFacts) -> bytes:
    """The page: metrics of all loops whose publishers answer with valid metrics, and the agent's own."""
    running = [loop for loop in facts.loops if loop.socket]
    merged, served = MergedPages(), set[str]()
    with concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
        for loop, page in zip(running, pool.map(fetched, [loop.socket for loop in running]), strict=True):
            with contextlib.suppress(ValueError):
                if page is not None:
                    merged.add(page, dict(zip(LOOP_LABELS, loop.labels, strict=True)))
                    served.add(loop.loop)
    own = _Metrics(list(agent_metrics(facts, served, time.process_time())))
    return generate_latest(merged) + generate_latest(own)


def fetched(path: str) -> str | None:
    """The metrics page of the publisher at a Unix socket; None where it does not answer properly and in time."""
    data, until_s = bytearray(), time.monotonic() + REQUEST_S
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(REQUEST_S)
            connection.connect(path)
            with contextlib.suppress(ConnectionError):  # reset after the page was sent
                connection.sendall(_REQUEST)
                while len(data) <= MOST_PAGE_BYTES and (part := connection.recv(1 << 16)):
                    data += part
                    connection.settimeout(max(1e-3, until_s - time.monotonic()))
        head, _, body = bytes(data).partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").lower().split("\r\n")
        [length] = [int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")]
        return body.decode() if first.startswith("http/1.1 200 ") and len(body) == length else None
    except (OSError, ValueError):
        return None


class _Metrics(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


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
    rendered(AgentFacts("", "", 0.0, 0.0))  # imports all that it needs
    privileges.drop_all()
    facts = {"event": "metrics", "pid": os.getpid(), "uid": os.getuid(), "confined": confine_publisher([])}
    with contextlib.suppress(OSError):
        print(json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **facts}), file=sys.stderr)
    serve(http, link)
    return 0


if __name__ == "__main__":
    sys.exit(main())
