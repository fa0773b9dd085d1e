"""From the control API to the loop's process and back."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from typing import Any

MAX_ERROR = 500
MAX_ORDER_BYTES = 1 << 16
Answer = dict[str, Any]


def refusal(error: str, reason: str) -> Answer:
    """An answer that says no, in one line."""
    line = " ".join(error.split())
    return {"ok": False, "error": line if len(line) <= MAX_ERROR else f"{line[: MAX_ERROR - 3]}...", "reason": reason}


class LoopLink:
    """The way to the loop's process: one message an order, ``{"id": N, "command": NAME, ...}``, answered by id.

    Args:
        connection: SOCK_SEQPACKET, connected, not blocking.
        ended: called once when the other side has gone.
    """

    MAX_MESSAGE_BYTES = 1 << 18

    def __init__(self, connection: socket.socket, ended: Callable[[], None], answer_s: float = 30.0) -> None:
        connection.setblocking(False)
        self._connection, self._ended, self._answer_s = connection, ended, answer_s
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        # Not from 1: an answer to a publisher that ended must not be taken for one of ours.
        self._next_id = time.monotonic_ns()

    def start(self) -> None:
        """Begin to receive."""
        asyncio.get_running_loop().add_reader(self._connection, self._receive)

    def close(self) -> None:
        """Receive no more; whoever waits gets no answer."""
        asyncio.get_running_loop().remove_reader(self._connection)
        for future in self._waiting.values():
            future.cancel()

    async def forward(self, order: dict[str, Any]) -> Answer:
        """Send an order and wait for its answer."""
        self._next_id += 1
        number = self._next_id
        message = order | {"id": number}
        data = json.dumps(message).encode()
        if len(data) > MAX_ORDER_BYTES:  # the other side would see a part of it, and not know whose it is
            return refusal(f"order: {len(data)} bytes; accepted: at most {MAX_ORDER_BYTES}", "input")
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._connection.send(data)
            async with asyncio.timeout(self._answer_s):
                return await future
        except TimeoutError:
            return refusal(f"no answer from the controller within {self._answer_s:g} s", "no answer")
        except OSError:
            return refusal("the controller takes no commands", "no answer")
        finally:
            del self._waiting[number]

    def _receive(self) -> None:
        try:
            message = self._connection.recv(self.MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            asyncio.get_running_loop().remove_reader(self._connection)
            self._ended()
            return
        answer: Answer = json.loads(message)
        future = self._waiting.get(answer.pop("id"))
        if future is not None and not future.done():
            if not answer.setdefault("ok", False):
                answer.setdefault("reason", "refused")
            future.set_result(answer)
