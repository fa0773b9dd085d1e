"""The controller's thread that takes orders, from the publisher's socket and from signals, and carries them out."""

from __future__ import annotations

import contextlib
import json
import selectors
import signal
import socket
import threading
from types import FrameType
from typing import Any

from ..contracts.modes import Mode
from ..contracts.orders import Order, parse
from ..system.realtime import just_behind_the_loop
from .controller import Controller

MAX_MESSAGE = 1 << 16
BY_SIGNAL = {signal.SIGUSR1: "shadow", signal.SIGUSR2: "configured"}
"""Signals that switch the mode: to shadow at once, and back to the mode of the configuration."""


class ControlThread:
    """Runs beside the loop; a ``with`` block starts it, in the main thread, and ends it.

    A message from the publisher is an order with an ``id``, as one packet; each gets one answer with that ``id``:
    ``{"id", "ok": true, ...}`` or ``{"id", "ok": false, "error"}``. It is checked here again: the publisher talks to
    everybody, and is trusted with nothing.

    Args:
        controller: what orders are for.
        publisher: a connected SOCK_SEQPACKET socket; owned.
    """

    def __init__(self, controller: Controller, publisher: socket.socket) -> None:
        self._operation, self._publisher = controller, publisher
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._previous: dict[signal.Signals, Any] = {}
        self._answering = threading.Lock()

    def connect(self, publisher: socket.socket) -> None:
        """Take orders from another publisher from now on: the one before has ended."""
        with self._answering:
            before, self._publisher = self._publisher, publisher
        before.close()
        self._wake.send(b"\0")

    def __enter__(self) -> ControlThread:
        if threading.current_thread() is threading.main_thread():
            for number in BY_SIGNAL:
                self._previous[number] = signal.signal(number, self._on_signal)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        with contextlib.suppress(OSError):
            self._wake.send(b"\xff")
        self._thread.join(5.0)
        for end in (self._publisher, self._wake, self._woken):
            end.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """In the loop's thread: one byte, and that is all."""
        del frame
        with contextlib.suppress(BlockingIOError):
            self._wake.send(bytes([number]))

    def _run(self) -> None:
        while True:
            publisher = self._publisher
            with selectors.DefaultSelector() as selector:
                selector.register(self._woken, selectors.EVENT_READ)
                with contextlib.suppress(ValueError):  # closed: its successor has not come yet
                    selector.register(publisher, selectors.EVENT_READ)
                if not self._serve(selector, publisher):
                    return

    def _serve(self, selector: selectors.BaseSelector, publisher: socket.socket) -> bool:
        """Until the publisher is replaced (true) or the thread shall end (false)."""
        while True:
            for key, _ in selector.select():
                if key.fileobj is self._woken:
                    byte = self._woken.recv(1)[0]
                    if byte == 0xFF:
                        return False
                    if byte == 0:
                        return True
                    self._by_signal(signal.Signals(byte))
                elif not self._by_message(publisher):
                    selector.unregister(publisher)

    def _by_signal(self, number: signal.Signals) -> None:
        controller = self._operation
        config = controller.config
        mode = Mode.SHADOW if BY_SIGNAL[number] == "shadow" else Mode[config.mode.upper()]
        canary = config.canary if mode is Mode.CANARY else ()
        try:
            with just_behind_the_loop():
                controller.carry_out(Order("mode", mode, canary, force=controller.forced))
        except Exception as error:  # noqa: BLE001 (whatever it is, the next order is served)
            controller.loop.report.last_error = f"{number.name}: {_line(error)}"

    def _by_message(self, publisher: socket.socket) -> bool:
        """Answer one message; false when the publisher has gone."""
        try:
            data = publisher.recv(MAX_MESSAGE)
        except OSError:
            return False
        if not data:
            return False
        identity: Any = None
        try:
            request = json.loads(data)
            identity = request.pop("id", None) if isinstance(request, dict) else None
            order = parse(request, self._operation.slices.names)
            with just_behind_the_loop():
                answer = {"ok": True} | self._operation.carry_out(order)
        except Exception as error:  # noqa: BLE001 (likewise)
            answer = {"ok": False, "error": _line(error)}
        with self._answering, contextlib.suppress(OSError):
            publisher.send(json.dumps({"id": identity} | answer).encode())
        return True


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
