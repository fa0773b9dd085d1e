"""Calls that may have to wait for a lock of the kernel, made by a thread beside the loop's.

The kernel has one lock for changes of interfaces, qdiscs and classes in all network namespaces (``rtnl_mutex``,
net/core/rtnetlink.c), and asking for them takes it as well. While somebody's namespace full of interfaces is removed it
is held for seconds (``cleanup_net``, net/core/net_namespace.c). So the loop's thread calls nothing that takes it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from .realtime import stay_just_behind_the_loop

T = TypeVar("T")

LOOP_WAIT_S = 0.0005
"""What a loop can wait for: some ten times what a call takes while nobody holds the lock."""
PATIENT_WAIT_S = 5.0
"""For whoever has no ticks."""


class Aside:
    """A thread that makes calls in the order in which they come, just behind the loop's (`stay_just_behind_the_loop`).

    It starts with the first call, with the capabilities of whoever makes that, on the CPUs of whoever has made this.

    Args:
        name: of the thread.
        wait_s: how long a caller waits for what it has asked for.
    """

    def __init__(self, name: str, wait_s: float) -> None:
        self._wait_s, self._cpus = wait_s, os.sched_getaffinity(0)
        self._thread = ThreadPoolExecutor(1, name, self._begin)
        self._last: Future[object] | None = None
        self._submitting = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether something that was asked for is not done yet."""
        return self._last is not None and not self._last.done()

    def call(self, what: Callable[[], T]) -> Future[T]:
        """Have something called; waits for it a while, and not at all where something before it has not been done."""
        behind = self.busy
        future = self._submit(what)
        if not behind:
            with contextlib.suppress(TimeoutError):
                future.exception(self._wait_s)
        return future

    def call_and_wait(self, what: Callable[[], T]) -> T:
        """The same for whoever has to have it done: waits for as long as that takes."""
        try:
            future = self._submit(what)
        except RuntimeError:  # the interpreter ends, and has waited for its threads
            return what()
        return future.result()

    def close(self) -> None:
        """Wait until everything is done, and end the thread; more than once does nothing."""
        self._thread.shutdown()

    def _submit(self, what: Callable[[], T]) -> Future[T]:
        with self._submitting:
            future = self._thread.submit(what)
            self._last = future  # type: ignore[assignment]  # a future of T is one of an object for who only looks if it is done
        return future

    def _begin(self) -> None:
        with contextlib.suppress(OSError):  # CPUs that have gone since; no CAP_SYS_NICE
            os.sched_setaffinity(0, self._cpus)
        stay_just_behind_the_loop()


class Look(Generic[T]):
    """One call that is made now and then, by a thread, and never twice at once.

    Args:
        aside: makes it.
        call: what.
    """

    def __init__(self, aside: Aside, call: Callable[[], T]) -> None:
        self._aside, self._call = aside, call
        self._future: Future[T] | None = None

    @property
    def pending(self) -> bool:
        """Whether one has been started whose result was not taken."""
        return self._future is not None

    def start(self) -> None:
        """Have it made, unless one is on its way or has not been taken yet."""
        if self._future is None:
            self._future = self._aside.call(self._call)

    @property
    def failed(self) -> bool:
        """Whether it has raised something that `take` will raise."""
        return self._future is not None and self._future.done() and self._future.exception() is not None

    def take(self) -> T | None:
        """What it has found, once; None where there is nothing new. Raises what the call has raised."""
        future = self._future
        if future is None or not future.done():
            return None
        self._future = None
        return future.result()
