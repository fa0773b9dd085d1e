"""Calls that may have to wait for a lock of the kernel, made by a thread beside the loop's.

The kernel has one lock for changes of interfaces, qdiscs and classes in all network namespaces (``rtnl_mutex``,
net/core/rtnetlink.c), and listing them takes it as well. While a namespace full of interfaces is removed it is held for
seconds (``cleanup_net``, net/core/net_namespace.c). So the loop's thread calls nothing that takes it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from .realtime import stay_just_behind_the_loop, threads_inherit

T = TypeVar("T")

LOOP_WAIT_S = 0.0005
"""Longest wait in a loop: some ten times the duration of a call while the lock is free."""
PATIENT_WAIT_S = 5.0
"""Wait of callers that have no ticks."""


class BackgroundCaller:
    """A thread that makes calls in the order of submission, just behind the loop's (`stay_just_behind_the_loop`).

    It starts with the first call, with the capabilities of the thread that submits it, on the CPUs of the thread that
    has made this object.

    Args:
        name: of the thread.
        wait_s: how long `call` waits for the result.
    """

    def __init__(self, name: str, wait_s: float) -> None:
        self._wait_s, self._cpus = wait_s, os.sched_getaffinity(0)
        self._thread = ThreadPoolExecutor(1, name, self._begin)
        self._last: Future[object] | None = None
        self._submitting = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether a call is not done yet."""
        return self._last is not None and not self._last.done()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Submit a call; waits ``wait_s`` for it, and not at all where an earlier call is not done."""
        behind = self.busy
        future = self._submit(function)
        if not behind:
            with contextlib.suppress(TimeoutError):
                future.exception(self._wait_s)
        return future

    def call_and_wait(self, function: Callable[[], T]) -> T:
        """Submit a call and wait for its result, however long that takes."""
        try:
            future = self._submit(function)
        except RuntimeError:  # the interpreter ends, and has waited for its threads
            return function()
        return future.result()

    def close(self) -> None:
        """Wait until all calls are done, and end the thread; safe to repeat."""
        self._thread.shutdown()

    def _submit(self, function: Callable[[], T]) -> Future[T]:
        with self._submitting, threads_inherit() if self._last is None else contextlib.nullcontext():
            future = self._thread.submit(function)
            self._last = future  # type: ignore[assignment]  # only its `done` is used
        return future

    def _begin(self) -> None:
        with contextlib.suppress(OSError):  # CPUs that have gone since; no CAP_SYS_NICE
            os.sched_setaffinity(0, self._cpus)
        stay_just_behind_the_loop()


class RepeatedCall(Generic[T]):
    """One call that is made now and then by a `BackgroundCaller`, and never twice at once."""

    def __init__(self, background: BackgroundCaller, function: Callable[[], T]) -> None:
        self._background, self._function = background, function
        self._future: Future[T] | None = None

    @property
    def pending(self) -> bool:
        """Whether a call has been started whose result was not taken."""
        return self._future is not None

    def start(self) -> None:
        """Submit the call, unless there is a call whose result was not taken."""
        if self._future is None:
            self._future = self._background.call(self._function)

    @property
    def failed(self) -> bool:
        """Whether the call has raised something that `take` will raise."""
        return self._future is not None and self._future.done() and self._future.exception() is not None

    def take(self) -> T | None:
        """The result, once; None where there is none yet. Raises what the call has raised."""
        future = self._future
        if future is None or not future.done():
            return None
        self._future = None
        return future.result()
