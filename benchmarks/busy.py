"""Processes that want all of the CPUs they may use, and files of cgroups."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

BUSY = [sys.executable, "-S", "-c", "import signal\nsignal.alarm(3600)\nwhile True: pass"]


@contextlib.contextmanager
def busy(count: int, sessions: bool = False) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many of them; with ``sessions`` each in one of its own."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes += [subprocess.Popen(BUSY, start_new_session=sessions) for _ in range(count)]
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def write(file: Path, value: object) -> None:
    """By a descriptor: the kernel's refusal is an OSError here, and not lost in a buffer."""
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)
