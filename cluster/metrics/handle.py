"""The agent's side of the process that serves metrics: starts it, reports to it about once a second, ends it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time

from slicepilot.cluster.client.errors import BackOff
from slicepilot.controller.publisher.listeners import HttpAddress, http_listener
from slicepilot.controller.system.own_programs import start

from .figures import AgentFacts

REPORT_S = 1.0
RELIABLE_S = 60.0
END_S = 2.0


class MetricsServer:
    """The process, and its listening socket, which outlives it.

    Args:
        address: to serve on.

    Raises:
        ConfigError: it cannot be listened on.
    """

    def __init__(self, address: HttpAddress) -> None:
        self._http = http_listener(address)
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._back_off = BackOff(1.0, 60.0)
        self._started_s, self._again_s, self._reported_s = 0.0, 0.0, float("-inf")

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def due(self) -> bool:
        return time.monotonic() - self._reported_s >= REPORT_S

    def report(self, facts: AgentFacts) -> None:
        """Send these figures without waiting. Starts the process, again and ever less often if it ends."""
        now_s = self._reported_s = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            if now_s - self._started_s > RELIABLE_S:
                self._back_off.succeeded()
            self._again_s = now_s + self._back_off.failed()
            self._end()
        if self._process is None and now_s >= self._again_s:
            try:
                self._start(now_s)
            except OSError:  # no memory, no processes
                self._again_s = now_s + self._back_off.failed()
        if self._link is not None:
            with contextlib.suppress(OSError):  # its queue is full: the next message is newer anyway
                self._link.send(facts.message())

    def close(self) -> None:
        self._end()
        self._http.close()

    def _start(self, now_s: float) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = [self._http.fileno(), theirs.fileno()]
        arguments = ("--http-fd", str(fds[0]), "--link-fd", str(fds[1]))
        try:
            self._process = start(f"{__package__}.process", *arguments, fds=fds, stdout=subprocess.DEVNULL)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._link, self._started_s = ours, now_s

    def _end(self) -> None:
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._link = self._process = None
