"""The controller's thread that takes orders, from the publisher's socket and from signals, and carries them out."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import selectors
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from slicepilot.configs import ConfigError
from slicepilot.controller.contracts.modes import Mode
from slicepilot.controller.contracts.orders import ID_BYTES, MAX_ORDER_BYTES, Answer, Order, parse, refusal
from slicepilot.controller.system.realtime import ThreadBesideTheLoop

from .controller import Controller, is_slow

MAX_WAITING = 8
BY_SIGNAL = {signal.SIGUSR1: "shadow", signal.SIGUSR2: "configured"}
"""Signals that switch the mode: to shadow at once, and back to the mode of the configuration."""


class ControlThread:
    """Runs beside the loop; a ``with`` block starts it, in the main thread, and ends it.

    A packet from the publisher is a number and the line that a client has sent; it is answered with the same number and
    ``{"ok": true, ...}`` or ``{"ok": false, "error", "reason"}``. The line is parsed here and nowhere else, because the
    publisher is not trusted.

    Slow orders are carried out by another thread, so that ``safe`` and signals are served meanwhile. An order for
    shadow overtakes earlier orders to act. ``publisher`` is a connected SOCK_SEQPACKET socket; owned.
    """

    def __init__(self, controller: Controller, publisher: socket.socket) -> None:
        self._operation, self._publisher = controller, publisher
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._thread = ThreadBesideTheLoop(self._run, "control")
        self._previous: dict[signal.Signals, Any] = {}
        self._answering = threading.Lock()
        self._slow = SlowOrders()
        self._shadow_orders = 0
        self._last: object = None  # order that was given last, until it is carried out

    def connect(self, publisher: socket.socket) -> None:
        """Take orders from another publisher; the previous has ended."""
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
        """Called in the loop's thread: writes a byte."""
        del frame
        with contextlib.suppress(BlockingIOError):
            self._wake.send(bytes([number]))

    def _run(self) -> None:
        while True:
            publisher = self._publisher
            with selectors.DefaultSelector() as selector:
                selector.register(self._woken, selectors.EVENT_READ)
                with contextlib.suppress(ValueError):  # closed, and not replaced yet
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

        if self._last is number:
            return  # not carried out yet
        if BY_SIGNAL[number] == "configured" and mode is Mode.SHADOW is controller.loop.active.mode:
            controller.note_signal(f"{number.name}: the configured mode is shadow, which is in force: nothing changes")

        def reply(answer: Answer) -> None:
            if self._last is number:
                self._last = None
            if not answer["ok"]:
                controller.loop.report.last_error = f"{number.name}: {answer['error']}"

        self._carry_out(Order("mode", mode, canary), reply, as_at_the_start=True, name=number)

    def _by_message(self, publisher: socket.socket) -> bool:
        """Answer one message, now or later; false when the publisher has gone."""
        try:
            data = publisher.recv(ID_BYTES + MAX_ORDER_BYTES + 1)
        except OSError:
            return False
        if not data:
            return False
        number, line = data[:ID_BYTES], data[ID_BYTES:]

        def reply(answer: Answer) -> None:
            with self._answering, contextlib.suppress(OSError):
                # A publisher that does not read misses it.
                publisher.send(number + json.dumps(answer).encode(), socket.MSG_DONTWAIT)

        try:
            order = parse(line, self._operation.slices.names)
        except Exception as error:  # noqa: BLE001 (whatever it is, the next order is served)
            reply(_refused(error, "input"))
        else:
            self._carry_out(order, reply)
        return True

    def _carry_out(
        self,
        order: Order,
        reply: Callable[[Answer], None],
        as_at_the_start: bool = False,
        name: object = None,
    ) -> None:
        """Carry out an order, in turn if it is slow, and reply.

        Args:
            order, reply: what to do, and what is given the answer.
            as_at_the_start: forced if the start was, and with the present policy.
            name: identifies a signal; the same signal is ignored while it is the last order.
        """
        self._last = name
        self._shadow_orders += order.mode is Mode.SHADOW
        before = self._shadow_orders

        def do() -> None:
            try:
                force = order.force or (as_at_the_start and self._operation.forced)
                given = dataclasses.replace(order, force=force)
                answer = {"ok": True} | self._operation.carry_out(given, lambda: self._shadow_orders != before)
            except Exception as error:  # noqa: BLE001 (as above)
                answer = _refused(error)
            reply(answer)

        if not is_slow(order):
            do()
            return
        try:
            self._slow.add(do)
        except ConfigError as error:
            reply(_refused(error))


def _refused(error: Exception, reason: str = "refused") -> Answer:
    return refusal(str(error) or type(error).__name__, reason)


class SlowOrders:
    """Carries out slow orders in turn; its thread starts with the first.

    The process does not wait for it at its end, because a file may never be read.
    """

    def __init__(self) -> None:
        self._tasks: queue.Queue[Callable[[], None]] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None

    def add(self, task: Callable[[], None]) -> None:
        """Add a task that raises nothing; raises ConfigError if too many wait."""
        try:
            self._tasks.put_nowait(task)
        except queue.Full:
            waiting = f"{MAX_WAITING} orders to reload or to act are waiting"
            raise ConfigError(f"{waiting}; only safe, pause, resume and mode shadow are possible meanwhile") from None
        if self._thread is None:
            self._thread = ThreadBesideTheLoop(self._run, "slow orders")
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._tasks.get()()
