"""Changes to a running loop, prepared by other threads and made by its own between two ticks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait

Change = Callable[[], object]


class LoopEndedError(RuntimeError):
    """The loop ended before the change could be made."""


class Mailbox:
    """The queue of changes; each is made by the loop or withdrawn, and never both.

    Attributes:
        pending: changes that the loop has not taken; empty most of the time, and cheap to look at.
    """

    def __init__(self) -> None:
        self.pending = deque[tuple[Change, Future[None]]]()
        self._ended = False

    def make(self, change: Change, timeout_s: float = 10.0) -> None:
        """Have the loop call ``change``, which takes microseconds and must not wait; returns when it has been called.

        Raises:
            LoopEndedError: there is no loop any more.
            TimeoutError: the loop did not take it in time; the change is withdrawn and will not be made.
            Exception: whatever the change raised.
        """
        future = Future[None]()
        self.pending.append((change, future))
        if self._ended:
            self.end()
        wait([future], timeout_s)
        if future.cancel():
            raise TimeoutError(f"the loop did not take the change within {timeout_s:g} s")
        future.result()  # of a change that the loop has begun, however late

    def take(self) -> None:
        """The loop's side: make the oldest pending change; what it raises goes to the thread that waits for it."""
        try:
            change, future = self.pending.popleft()
        except IndexError:  # `end` was quicker
            return
        if not future.set_running_or_notify_cancel():
            return
        try:
            change()
        except Exception as error:  # noqa: BLE001 (goes to the thread that waits)
            future.set_exception(error)
        else:
            future.set_result(None)

    def end(self) -> None:
        """No changes from now on: threads that wait, or come later, get `LoopEndedError`."""
        self._ended = True
        while self.pending:
            _, future = self.pending.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(LoopEndedError("the loop has ended"))
