"""Where log lines leave the process: a pipe whose reader may have stopped must hold up nobody but a thread."""

from __future__ import annotations

import logging
import os
import queue
import threading

MOST_LINES = 1000
LAST_S = 1.0


class Outlet(logging.Handler):
    """Hands lines to a thread that writes them to a file descriptor; lines that find no room are lost, and counted.

    Until it is started, lines are kept. Threads keep the capabilities they were started with: start it without.

    Args:
        descriptor: where to; not closed.

    Attributes:
        lost: lines for which there was no room.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(MOST_LINES)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self.lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record; never waits."""
        try:
            self._lines.put_nowait(self.format(record).encode("utf-8", "backslashreplace") + b"\n")
        except queue.Full:
            self.lost += 1

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is there, for as long as a second at most where it was started, and end."""
        if not self._thread.is_alive():
            self.start()
        try:
            self._lines.put(None, timeout=LAST_S)
        except queue.Full:
            return
        self._thread.join(LAST_S)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:  # nobody reads any more
                self.lost += 1
