"""The load generator and its sink, at work in the network namespaces of a rig."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from slicepilot.testbed.backend.traffic import LOAD_PRIORITY
from slicepilot.testbed.lifecycle.processes import binary


@contextlib.contextmanager
def sending(
    netns: str, plan: dict[str, Any], file: Path, log: IO[bytes], priority: int = LOAD_PRIORITY
) -> Iterator[None]:
    """Have a plan (``load --help``) played, written to a file before, with a priority of SCHED_FIFO."""
    file.write_text(json.dumps(plan))
    command = ["ip", "netns", "exec", netns, "chrt", "--fifo", str(priority), str(binary("load")), f"--plan={file}"]
    with ending(subprocess.Popen(command, stdout=log, stderr=log)):
        yield


@contextlib.contextmanager
def receiving(netns: str, address: str, *options: str, out: IO[bytes] | int) -> Iterator[subprocess.Popen[bytes]]:
    """A sink at an address with a port; its options are in ``sink --help``."""
    command = ["ip", "netns", "exec", netns, str(binary("sink")), f"--listen={address}", *options]
    with ending(subprocess.Popen(command, stdout=out)) as process:
        yield process


@contextlib.contextmanager
def ending(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """SIGTERM at the end, and wait for it."""
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()
