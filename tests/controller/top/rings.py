"""Rings with the ticks that a test wants, and the screen of ``slicepilot top`` for them."""

from __future__ import annotations

import dataclasses
import io
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console, Group

from slicepilot.controller.contracts.modes import Mode
from slicepilot.controller.record.ring import Tick, TickRing
from slicepilot.controller.top.drawing import BLOCKS, Glyphs
from slicepilot.controller.top.frame import View, frame
from slicepilot.controller.top.screen import Follower
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import Sla, SliceSet
from slicepilot.env.telemetry import Telemetry
from tests.controller.record.conftest import running

PERIOD_S = 0.01
SPEC = SliceSet.from_yaml("five-video").slices[0]


class Writer:
    """A ring with ticks that are as a test wants them; five slices that keep their promises by default."""

    def __init__(self, path: Path, slices: int = 5, name: str = "sp", **description: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.ring = TickRing(path, slices)
        specs = [dataclasses.replace(SPEC, name=f"slice{k + 1}", sla=Sla(40.0, 5.0)) for k in range(slices)]
        self.ring.describe(running(specs, name=name, **description))
        self.telemetry = Telemetry.empty(slices)
        self.telemetry.slices[:2] = 45.0
        self.telemetry.slices[2], self.telemetry.slices[3] = 210.0, 1200.0
        self.telemetry.node[:] = [[0.25], [0.5]]
        self.wanted, self.allowed, self.applied = (Knobs.none(slices) for _ in range(3))
        self.tick = Tick(mode=Mode.LIVE, observe_ns=20_000, infer_ns=30_000, guard_ns=10_000, apply_ns=5_000)
        self.reasons = np.zeros(slices, np.uint32)
        self.note()

    def note(self, **notes: Any) -> None:
        self.ring.note(
            {
                "mode": "live",
                "supervisor": {"pid": 1, "restarts": 0, "alive": True, "groups": "left", "confined": "seccomp"},
            }
            | notes
        )

    def write(self, ticks: int = 300, seconds: float | None = None) -> None:
        """So many ticks up to now."""
        real_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
        period_ns = round((PERIOD_S if seconds is None else seconds / ticks) * 1e9)
        for before in reversed(range(ticks)):
            ago_ns = before * period_ns
            tick = self.tick._replace(time_ns=real_ns - ago_ns, monotonic_ns=monotonic_ns - ago_ns)
            self.ring.write(tick, self.telemetry, self.wanted, self.allowed, self.applied, self.reasons)


def shown(path: Path, width: int = 80, height: int | None = 24, glyphs: Glyphs = BLOCKS, **view: Any) -> list[str]:
    """What the screen says, as lines; each checked against the screen's size."""
    follower = Follower(path)
    assert follower.status is not None
    lines = frame(follower.status.document(60), View(width, height, glyphs, **view))
    follower.close()
    assert all(cell_len(line.plain) <= width for line in lines), [line.plain for line in lines]
    assert height is None or len(lines) <= height
    console = Console(width=width, height=height, file=io.StringIO(), record=True)
    console.print(Group(*lines))
    printed = [line.rstrip() for line in console.export_text().splitlines()]
    assert printed == [line.plain.rstrip() for line in lines], "nothing is wrapped"
    return [line.plain for line in lines]
