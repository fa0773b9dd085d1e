"""Processes that want all of the CPUs they may use."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def busy(count: int, most_s: int, sessions: bool = False) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many of them, each with ``sessions`` in one of its own; should nobody end them, they end after ``most_s``."""
    command = [sys.executable, "-S", "-c", f"import signal\nsignal.alarm({most_s})\nwhile True: pass"]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.extend(subprocess.Popen(command, start_new_session=sessions) for _ in range(count))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
