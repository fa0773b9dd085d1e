"""Mailbox to a running loop, prepared by other threads and made by its own between two ticks."""

from __future__ import annotations

import threading
from collections.abc import Callable

Change = Callable[[], object]


class LoopEndedError(RuntimeError):
    """The loop ended before the change could be made."""


class Mailbox:
    """One change at a time: `make` waits until the loop has called it, `take` is the loop's side.

    Attributes:
        pending: what the loop shall call; a plain attribute, so that looking costs the loop nothing.
    """

    def __init__(self) -> None:
        self.pending: Change | None = None
        self._turn, self._done = threading.Lock(), threading.Event()
        self._error: BaseException | None = None
        self._ended = False

    def make(self, change: Change, timeout_s: float = 10.0) -> None:
        """Have the loop call ``change``, which takes microseconds and must not wait.

        Raises:
            LoopEndedError: there is no loop any more.
            TimeoutError: the loop did not come by; the change will not be made.
            Exception: whatever the change raised.
        """
        with self._turn:
            self._done.clear()
            self._error = None
            self.pending = change
            if self._ended:
                self.end()
            if not self._done.wait(timeout_s):
                self.pending = None
                raise TimeoutError(f"the loop did not take the change within {timeout_s:g} s")
            if self._error is not None:
                raise self._error

    def take(self) -> None:
        """Make the pending change, if any; what it raises goes to whoever asked for it."""
        change, self.pending = self.pending, None
        if change is None:
            return
        try:
            change()
        except Exception as error:  # noqa: BLE001 (goes to the thread that asked)
            self._error = error
        self._done.set()

    def end(self) -> None:
        """No changes from now on: whoever waits, or comes later, gets `LoopEndedError`."""
        self._ended = True
        if self.pending is not None:
            self.pending = None
            self._error = LoopEndedError("the loop has ended")
            self._done.set()
