"""Ending in good order: the signals that ask for it only set a flag."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SWITCHING = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that switch the controller's mode; a service manager may send either kind to all processes at once."""


class StopRequest:
    """Inside a ``with`` block the first SIGINT, SIGTERM or SIGHUP sets `requested`; a second raises KeyboardInterrupt.

    Outside the main thread no handler can be installed: only `stop` sets the flag then.

    Attributes:
        requested: whether to stop.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None] = {}

    def stop(self) -> None:
        self.requested = True

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
