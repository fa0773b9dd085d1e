"""The control API: one order as a JSON object on a line over a Unix socket, one answer on a line.

``{"command": "pause"}`` is answered with ``{"ok": true, ...}`` or ``{"ok": false, "error": TEXT, "reason": WHY}``. The
reason is ``input`` (not a valid order), ``refused`` (the controller says no), ``no answer`` (it says nothing in time),
``denied`` (not this user) or ``busy`` (too many clients or orders). Orders are those of
`slicepilot.controller.contracts.orders`; only ``status`` is answered here, all others go to the loop's process.

Nothing that a client does holds up anybody else: lines, clients, rates and times are bounded.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from slicepilot.configs import ConfigError
from slicepilot.controller.contracts.orders import decode, parse

from .link import Answer, refusal
from .metrics.exposition import Renderer
from .peers import Access, Peer
from .places import Place, Places
from .state.status import Status

MAX_CLIENTS = 64
MAX_LINE_BYTES = 1 << 16
IDLE_S, ANSWER_S, TOLD_S = 10.0, 10.0, 0.05
RATE_PER_S, BURST, FLOOD = 10.0, 20, 40
"""Orders that one client may give; who goes on after so many refusals in a row is hung up on."""

Order = dict[str, Any]
Report = Callable[[Peer, Order, Answer], None]


class ControlApi:
    """Answers clients of one listening socket.

    Args:
        listener: Unix stream socket, bound and listening; taken over.
        access: who may connect.
        status: for ``status``, and for the slices' names.
        refresh: brings it up to date.
        forward: hands an order to the loop's process and returns its answer.
        report: told of every valid order but ``status``, with its answer.

    Attributes:
        requests, refused: lines answered, and those of them or clients that were turned down.
    """

    def __init__(
        self,
        listener: socket.socket,
        access: Access,
        status: Status,
        refresh: Callable[[], None],
        forward: Callable[[Order], Awaitable[Answer]],
        report: Report,
    ) -> None:
        self._listener, self._access, self._status = listener, access, status
        self._refresh, self._forward, self._report = refresh, forward, report
        self._places = Places(MAX_CLIENTS)
        # Many who ask at once are told the same: one document takes milliseconds to make.
        self._told = Renderer(lambda: json.dumps({"ok": True, "status": status.document(0)}).encode(), TOLD_S)
        self.requests = self.refused = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to answer."""
        self._server = await self._places.accept(self._listener, self._serve, MAX_LINE_BYTES)

    async def close(self) -> None:
        """Stop listening; what is being answered ends by itself."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(0)
        place: Place | None = None
        try:
            peer = Peer.of(writer.get_extra_info("socket"))
            if not self._access.permits(peer):
                error = f"uid {peer.uid} may not control this; accepted: {self._access.text}"
                await self._send(writer, refusal(error, "denied"))
                return
            place = self._places.take(writer, self._access.owns(peer))
            if place is None:
                await self._send(writer, refusal(f"more than {MAX_CLIENTS} clients at once", "busy"))
            else:
                await self._talk(reader, place, peer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # it went, or it dawdles
        finally:
            if place is not None:
                self._places.leave(place)
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()
            else:
                writer.close()

    async def _talk(self, reader: asyncio.StreamReader, place: Place, peer: Peer) -> None:
        allowance, busy, writer = _Allowance(), 0, place.writer
        while busy < FLOOD:
            place.served = False
            try:
                async with asyncio.timeout(IDLE_S):
                    line = await reader.readuntil(b"\n")
            except asyncio.LimitOverrunError:
                # Where the next line begins is anybody's guess.
                await self._send(writer, refusal(f"a line of more than {MAX_LINE_BYTES} bytes", "input"))
                return
            place.served = True
            if allowance.take():
                busy = 0
                answer = await self._answer(line, peer)
                await (self._send(writer, answer) if isinstance(answer, dict) else self._write(writer, answer))
            else:
                busy += 1
                await self._send(writer, refusal(f"more than {RATE_PER_S:g} requests a second", "busy"))

    async def _answer(self, line: bytes, peer: Peer) -> Answer | bytes:
        """To one line; bytes for what is told to many."""
        try:
            order = decode(line)
            parse(order, [spec["name"] for spec in self._status.slices])
        except ConfigError as error:
            return refusal(str(error), "input")
        if order["command"] == "status":
            self._refresh()
            return self._told.body()
        answer = await self._forward(order)
        self._report(peer, order, answer)
        return answer

    async def _send(self, writer: asyncio.StreamWriter, answer: Answer) -> None:
        self.refused += not answer["ok"]
        await self._write(writer, json.dumps(answer).encode())

    async def _write(self, writer: asyncio.StreamWriter, line: bytes) -> None:
        self.requests += 1
        writer.write(line + b"\n")
        async with asyncio.timeout(ANSWER_S):
            await writer.drain()


class _Allowance:
    """A bucket of requests that fills again with time."""

    def __init__(self) -> None:
        self._left, self._at_s = float(BURST), time.monotonic()

    def take(self) -> bool:
        now_s = time.monotonic()
        self._left = min(BURST, self._left + RATE_PER_S * (now_s - self._at_s))
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True
