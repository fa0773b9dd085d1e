"""The controller's thread for what takes long, one thing after the other; orders and signals are served beside it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from slicepilot.configs import ConfigError
from slicepilot.controller.system.realtime import ThreadBesideTheLoop

MOST_WAITING = 8


class SlowOrders:
    """Starts its thread at the first `add`.

    Its process does not wait for it when it ends: what is slow may be a file that cannot be read.
    """

    def __init__(self) -> None:
        self._tasks: queue.Queue[Callable[[], None]] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None

    def add(self, task: Callable[[], None]) -> None:
        """Have a task done, which raises nothing, after those before it.

        Raises:
            ConfigError: too many are waiting.
        """
        try:
            self._tasks.put_nowait(task)
        except queue.Full:
            waiting = f"{MOST_WAITING} orders to reload or to act are waiting"
            raise ConfigError(f"{waiting}; accepted: safe, pause, resume, mode shadow meanwhile") from None
        if self._thread is None:
            self._thread = ThreadBesideTheLoop(self._run, "slow orders")
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._tasks.get()()
