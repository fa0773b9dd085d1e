"""The control socket: an order is a line with a JSON object, and so is its answer.

``{"command": "pause"}`` is answered with ``{"ok": true, ...}`` or ``{"ok": false, "error": TEXT, "reason": WHY}``. The
reason is ``input`` (not a valid order), ``refused`` (by the controller), ``no answer`` (of the controller in time),
``denied`` (not this user) or ``busy`` (too many clients or orders). ``{"command": "status"}`` is answered here; every
other line is passed to the controller, which parses it (`slicepilot.controller.contracts.orders`).

Lines, clients, rates and times are bounded, so that no client delays another.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from slicepilot.controller.contracts.orders import ID_BYTES, MAX_ORDER_BYTES, Answer, refusal

from .connections import ConnectionLimit
from .listeners import Access, Peer

MAX_CLIENTS = 64
IDLE_S, ANSWER_S = 10.0, 10.0
CONTROLLER_S = 30.0
MAX_ANSWER_BYTES = 1 << 18
RATE_PER_S, BURST, FLOOD = 10.0, 20, 40
"""Limits of a client's lines, of all orders of the group's members, and of all of root and the controller's user. A
client is disconnected after ``FLOOD`` refusals in a row."""
_STATUS = re.compile(rb'\s*\{\s*"command"\s*:\s*"status"\s*\}\s*')
Report = Callable[[Peer, bytes, Answer], None]


class ControllerLink:
    """The connection to the controller (SOCK_SEQPACKET): a packet is an order's number and line, or the answer with
    that number. ``ended`` is set when the other side has gone."""

    def __init__(self, connection: socket.socket, ended: threading.Event, answer_s: float = CONTROLLER_S) -> None:
        self._connection, self._ended, self._answer_s = connection, ended, answer_s
        self._waiting: dict[bytes, Future[bytes]] = {}
        # Not from 1, because answers to a former publisher may still come.
        self._numbers = itertools.count(time.monotonic_ns())

    def start(self) -> None:
        threading.Thread(target=self._receive, name="link", daemon=True).start()

    def ask(self, line: bytes) -> bytes:
        number = struct.pack("=Q", next(self._numbers))
        future = self._waiting[number] = Future()
        try:
            self._connection.send(number + line, socket.MSG_DONTWAIT)
            return future.result(self._answer_s)
        except TimeoutError:
            return _dumped(refusal(f"no answer from the controller within {self._answer_s:g} s", "no answer"))
        except OSError:
            return _dumped(refusal("the controller takes no commands", "no answer"))
        finally:
            del self._waiting[number]

    def _receive(self) -> None:
        with contextlib.suppress(OSError):
            while message := self._connection.recv(MAX_ANSWER_BYTES):
                future = self._waiting.get(message[:ID_BYTES])
                if future is not None:
                    future.set_result(message[ID_BYTES:])
        self._ended.set()


class ControlSocket(ConnectionLimit):
    """Answers clients of one listening socket.

    Args:
        listener: Unix stream socket, bound and listening; taken over.
        access: which users may connect.
        status: the answer to ``status``, as JSON; called by several threads at once.
        ask: hands a line to the controller and returns its answer, as JSON.
        report: is given every order that the controller has taken or refused, with the answer.
    """

    def __init__(
        self,
        listener: socket.socket,
        access: Access,
        status: Callable[[], bytes],
        ask: Callable[[bytes], bytes],
        report: Report,
    ) -> None:
        super().__init__(listener, _Client, MAX_CLIENTS)
        self.access, self._status, self._ask, self._report = access, status, ask, report
        self._orders = {owner: Allowance() for owner in (True, False)}

    def privileged(self, connection: socket.socket) -> bool:
        return self.access.owns(Peer.of(connection))

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """See `socketserver`: whether a client may give orders."""
        peer = Peer.of(request)
        if self.access.permits(peer):
            return True
        self._say(request, refusal(f"uid {peer.uid} may not control this; expected {self.access.text}", "denied"))
        return False

    def refuse(self, connection: socket.socket) -> None:
        self._say(connection, refusal(f"more than {MAX_CLIENTS} clients at once", "busy"))

    def answer(self, line: bytes, peer: Peer) -> bytes:
        if _STATUS.fullmatch(line):
            return self._status()
        if not self._orders[self.access.owns(peer)].take():
            return _dumped(refusal(f"more than {RATE_PER_S:g} orders a second, in all", "busy"))
        answer = self._ask(line)
        document = json.loads(answer)
        self.refused += not document["ok"]
        if document.get("reason") != "input":
            self._report(peer, line, document)
        return answer

    def _say(self, connection: socket.socket, answer: Answer) -> None:
        """Answer a client without a thread, and without waiting."""
        self.refused += 1
        with contextlib.suppress(OSError):
            connection.send(_dumped(answer) + b"\n", socket.MSG_DONTWAIT)


class _Client(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, ControlSocket)
        peer, allowance, refused = Peer.of(self.connection), Allowance(), 0
        with contextlib.suppress(OSError):  # the client disconnected or timed out
            while refused < FLOOD:
                server.serving(self.request, False)
                self.connection.settimeout(IDLE_S)
                line = self.rfile.readline(MAX_ORDER_BYTES + 1)
                server.serving(self.request, True)
                server.requests += 1
                if len(line) > MAX_ORDER_BYTES:  # where the next line begins cannot be known
                    self._write(_dumped(refusal(f"a line of more than {MAX_ORDER_BYTES} bytes", "input")))
                    return
                if not line.endswith(b"\n"):
                    return
                if allowance.take():
                    refused = 0
                    self._write(server.answer(line, peer))
                else:
                    refused += 1
                    server.refused += 1
                    self._write(_dumped(refusal(f"more than {RATE_PER_S:g} requests a second", "busy")))

    def _write(self, answer: bytes) -> None:
        self.connection.settimeout(ANSWER_S)
        self.wfile.write(answer + b"\n")


class Allowance:
    """A token bucket of requests."""

    def __init__(self) -> None:
        self._left, self._at_s = float(BURST), time.monotonic()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take a request; false if none is left."""
        with self._lock:
            now_s = time.monotonic()
            self._left = min(BURST, self._left + RATE_PER_S * (now_s - self._at_s))
            self._at_s = now_s
            if self._left < 1:
                return False
            self._left -= 1
            return True


def _dumped(answer: Answer) -> bytes:
    return json.dumps(answer).encode()
