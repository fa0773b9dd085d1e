"""Steps that a Ctrl-C must not cut in two."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A Ctrl-C meanwhile is raised at the end: half a removal would leave the other half behind."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
