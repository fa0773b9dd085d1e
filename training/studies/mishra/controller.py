"""A controller as an operator runs it, beside a testbed that another process loads and measures."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import yaml

from slicepilot.configs import ConfigError, FailureError
from slicepilot.controller.record.ring_reader import TickReader
from slicepilot.data.files import appended, replace_file

READY_S, STOP_S = 90.0, 15.0
LOOK_S = 0.1
TICKS = 50  # until it counts as acting


@contextlib.contextmanager
def acting(testbed: str, agent: str) -> Iterator[None]:
    """``slicepilot run`` in mode live on a testbed that is up, with supervisor and publisher.

    Raises:
        FailureError: it did not come up, or ended early; with the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="slicepilot-study-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # decision records are written by another user
        config = {
            "name": testbed,
            "mode": "live",
            "agent": agent,
            "run_root": str(folder / "run"),
            "state_root": str(folder / "state"),
        }
        replace_file(folder / "run.yaml", yaml.safe_dump(config).encode())
        log = folder / "log"
        command = [sys.executable, "-P", "-m", "slicepilot.cli", "run", "-c", str(folder / "run.yaml")]
        with appended(log) as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=os.environ)
        try:
            _wait(process, folder / "run" / testbed / "ticks", log)
            yield
            if process.poll() is not None:
                raise FailureError(f"controller: ended early: {_tail(log)}")
        finally:
            _stop(process)


def _wait(process: subprocess.Popen[bytes], ring: Path, log: Path) -> None:
    """Until it has ticked in mode live for a while."""
    deadline = time.monotonic() + READY_S
    while True:
        with contextlib.suppress(ConfigError), closing(TickReader(ring)) as reader:
            if reader.notes().get("mode") == "live" and reader.written >= TICKS:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise FailureError(f"controller: did not come up: {_tail(log)}")
        time.sleep(LOOK_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()  # its supervisor restores the knobs
        process.wait()


def _tail(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
