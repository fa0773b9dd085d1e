"""Whether loops go on."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from slicepilot.controller.record.ring_reader import TickReader

from .agents import RunningAgent


def written(ring: Path) -> int:
    """Ticks so far."""
    with closing(TickReader(ring)) as reader:
        return reader.written


def goes_on(running: RunningAgent, loop: int) -> bool:
    """Whether a loop was not started again, but where the whole machine stood still for as long as a supervisor
    waits."""
    return running.loops() == [loop] or any(" hung: " in line["event"] for line in running.lines())
