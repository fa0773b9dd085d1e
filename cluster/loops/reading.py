"""What a loop is doing, from the ring of ticks that it writes: nothing is asked of it."""

from __future__ import annotations

import collections
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.controller.contracts.charge import InCharge, charges_of
from slicepilot.controller.publisher.status import Status
from slicepilot.controller.record.ring import LATE
from slicepilot.controller.top.screen import Follower
from slicepilot.env.promises import RATE_TOLERANCE

KEPT_S = 60
"""How far back the share of kept promises goes; a look a second."""
UNLIMITED = ("cpu_limit_mcpu", "egress_mbps")


@dataclass(frozen=True)
class SliceFigures:
    """A slice, over the last one to two seconds; None for what is not known, and for a limit that there is not."""

    name: str
    measured: bool
    kept: bool
    kept_percent: int
    offered_mbps: float | None
    carried_mbps: float | None
    p99_ms: float | None
    knobs: dict[str, float | None] | None
    in_charge: str
    safe: bool


@dataclass(frozen=True)
class LoopFigures:
    """A loop that has ticked."""

    mode: str
    canary: tuple[str, ...]
    agent: str
    stale: bool
    unmeasured: tuple[str, ...]
    slices: tuple[SliceFigures, ...]


class LoopReader:
    """Follows the ring of one process.

    Args:
        path: of the ring.
        pid: of the loop: a ring that another one has left is not its.
    """

    def __init__(self, path: Path, pid: int) -> None:
        self._path, self._pid = path, pid
        self._follower: Follower | None = None
        self._kept: dict[str, collections.deque[bool]] = {}

    def look(self) -> LoopFigures | None:
        """Once a second; None until it has ticked."""
        try:
            if self._follower is None:
                self._follower = Follower(self._path, wait=True)
            else:
                self._follower.look()
        except ConfigError:  # not whole yet, or of another version
            return None
        status = self._follower.status
        if status is None or status.description.get("pid") != self._pid or not len(status.last):
            return None
        return self._figures(status, status.document(0), self._follower.stale)

    def close(self) -> None:
        """Let go of it."""
        if self._follower is not None:
            with contextlib.suppress(BufferError):
                self._follower.close()

    def _figures(self, status: Status, document: dict[str, Any], stale: bool) -> LoopFigures:
        notes = document["notes"]
        return LoopFigures(
            mode=document["mode"],
            canary=tuple(notes.get("canary") or ()),
            agent=str(document["agent"]),
            stale=stale,
            unmeasured=tuple(notes.get("unmeasured") or ()),
            slices=tuple(self._slice(status, s, one) for s, one in enumerate(document["slices"])),
        )

    def _slice(self, status: Status, index: int, one: dict[str, Any]) -> SliceFigures:
        kept = bool(one["valid"]) and _kept(one)
        seen = self._kept.setdefault(one["name"], collections.deque(maxlen=KEPT_S))
        seen.append(kept)
        delay_us = one["delay_p99_us"]
        return SliceFigures(
            name=one["name"],
            measured=bool(one["valid"]),
            kept=kept,
            kept_percent=round(100 * sum(seen) / len(seen)),
            offered_mbps=one["offered_mbps"],
            carried_mbps=one["carried_mbps"],
            p99_ms=None if delay_us is None else delay_us / 1e3,
            knobs=one["knobs"]["applied"],
            in_charge=_charge(status, index).label if one["acting"] else "nobody",
            safe=one["level"] != "normal",
        )


def _kept(one: dict[str, Any]) -> bool:
    """As `slicepilot.env.promises` has it, of the same window for both parts: one to two seconds."""
    offered, carried, delay_us = one["offered_mbps"], one["carried_mbps"], one["delay_p99_us"]
    if offered is None or carried is None:
        return False
    owed = float(RATE_TOLERANCE) * min(offered, one["committed_mbps"])
    # Rates are rounded to four digits.
    return carried >= owed - 1e-3 * max(owed, 1e-3) and (delay_us is None or delay_us <= one["delay_bound_us"])


def _charge(status: Status, index: int) -> InCharge:
    """Of the newest tick, for one slice: by its own reasons and the node's."""
    last = status.last
    masks = np.stack([last["reasons"][:, index], last["node_reasons"]], axis=1).astype(np.uint32)
    return InCharge(int(charges_of(last["level"], (last["flags"] & LATE) != 0, masks)[0]))
