"""A loop's figures, read from its ring of ticks: no request is sent to it."""

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
from slicepilot.controller.record.ring import LATE, POWERLESS
from slicepilot.controller.top.screen import Follower
from slicepilot.env.promises import RATE_TOLERANCE

KEPT_S = 60
"""Seconds, and readings, over which the share of kept promises is computed."""
UNLIMITED = ("cpu_limit_mcpu", "egress_mbps")


@dataclass(frozen=True)
class SliceFigures:
    """A slice over the last one to two seconds; None for unknown values, and for knobs without a limit."""

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
        pid: of the loop; the ring of a former loop is ignored.
    """

    def __init__(self, path: Path, pid: int) -> None:
        self._path, self._pid = path, pid
        self._follower: Follower | None = None
        self._kept: dict[str, collections.deque[bool]] = {}

    def read(self) -> LoopFigures | None:
        """The figures, to be read once a second; None until it has ticked."""
        try:
            if self._follower is None:
                self._follower = Follower(self._path, wait=True)
            else:
                self._follower.look()
        except ConfigError:  # not complete yet, or of another version
            return None
        status = self._follower.status
        if status is None or status.description.get("pid") != self._pid or not len(status.last):
            return None
        return self._figures(status, status.document(0), self._follower.stale)

    def close(self) -> None:
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
            slices=tuple(self._slice(status, s, item) for s, item in enumerate(document["slices"])),
        )

    def _slice(self, status: Status, index: int, item: dict[str, Any]) -> SliceFigures:
        kept = bool(item["valid"]) and _kept(item)
        seen = self._kept.setdefault(item["name"], collections.deque(maxlen=KEPT_S))
        seen.append(kept)
        delay_us = item["delay_p99_us"]
        return SliceFigures(
            name=item["name"],
            measured=bool(item["valid"]),
            kept=kept,
            kept_percent=round(100 * sum(seen) / len(seen)),
            offered_mbps=item["offered_mbps"],
            carried_mbps=item["carried_mbps"],
            p99_ms=None if delay_us is None else delay_us / 1e3,
            knobs=item["knobs"]["applied"],
            in_charge=_charge(status, index).label if item["acting"] else "nobody",
            safe=item["level"] != "normal",
        )


def _kept(item: dict[str, Any]) -> bool:
    """Whether a promise is kept, as in `slicepilot.env.promises`, but over one to two seconds for rate and delay."""
    offered, carried, delay_us = item["offered_mbps"], item["carried_mbps"], item["delay_p99_us"]
    if offered is None or carried is None:
        return False
    owed = float(RATE_TOLERANCE) * min(offered, item["committed_mbps"])
    # Rates are rounded to four digits.
    return carried >= owed - 1e-3 * max(owed, 1e-3) and (delay_us is None or delay_us <= item["delay_bound_us"])


def _charge(status: Status, index: int) -> InCharge:
    """What was in charge of a slice in the newest tick, by its own reasons and the node's."""
    last = status.last
    masks = np.stack([last["reasons"][:, index], last["node_reasons"]], axis=1).astype(np.uint32)
    flags = last["flags"]
    return InCharge(int(charges_of(last["level"], flags & LATE != 0, flags & POWERLESS != 0, masks)[0]))
