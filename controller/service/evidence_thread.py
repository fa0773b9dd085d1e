"""The controller's thread that counts what the loop has decided, as evidence for a promotion."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.controller.contracts.modes import Mode
from slicepilot.controller.promotion.evidence import Evidence
from slicepilot.controller.promotion.signed import EvidenceFolder
from slicepilot.controller.record.estimate import window_ticks
from slicepilot.controller.record.ring import Records, TickRing, fingerprint
from slicepilot.controller.system.realtime import ThreadBesideTheLoop

LOOK_S, SAVE_S, WINDOW_S = 1.0, 30.0, 30.0


class EvidenceThread:
    """Reads new ticks from the ring about once a second, counts those of bundles, and saves the signed counts.

    A ``with`` block starts and ends it. The loop does not wait for it. When the disk fails, only evidence is lost.

    Args:
        ring, state: of the controller; the ring is described before the first tick.
        failed: called with errors, a line each.
        window_s: seconds between windows for the simulator.

    Raises:
        ConfigError: others can write to the state folder.
        OSError: key or folder cannot be made.
    """

    def __init__(self, ring: TickRing, state: Path, failed: Callable[[str], None], window_s: float = WINDOW_S) -> None:
        self._ring, self._folder, self._failed = ring, EvidenceFolder(state, create=True), failed
        self._window_ns = round(1e9 * window_s)
        self._ended = threading.Event()
        self._thread = ThreadBesideTheLoop(self._run, "evidence")
        self._counted = self._window_at_ns = 0
        self._evidence: dict[str, Evidence] = {}
        self._run_id = ""

    def __enter__(self) -> EvidenceThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(2 * LOOK_S)

    def _run(self) -> None:
        looks = 0
        while not self._ended.wait(LOOK_S):
            self._look()
            looks += 1
            if looks * LOOK_S >= SAVE_S:
                looks = 0
                self._save()
        self._look()
        self._save()

    def _look(self) -> None:
        first, written = self._counted, self._ring.written
        records = self._ring.ticks(first, written)
        self._counted = written
        if lost := written - first - len(records):
            self._failed(f"evidence for a promotion: {lost} ticks were overwritten before they were counted")
        for part in np.split(records, np.flatnonzero(np.diff(records["description"])) + 1) if len(records) else ():
            generation = int(part["description"][0])
            description = self._ring.descriptions.get(generation)
            if description is None or description["bundle"] is None:
                continue
            self._run_id = description["run_id"]
            evidence = self._evidence.setdefault(description["bundle"]["digest"], Evidence())
            evidence.add(description, part)
            self._add_window(evidence, description, part)

    def _add_window(self, evidence: Evidence, description: dict[str, Any], newest: Records) -> None:
        """Add the newest ticks as a window, if it is due and all are in shadow under the same description."""
        now_ns, end = int(newest["monotonic_ns"][-1]), int(newest["sequence"][-1])
        if now_ns - self._window_at_ns < self._window_ns and self._window_at_ns:
            return
        count = window_ticks(description["period_s"])
        window = self._ring.ticks(max(0, end - count), end)
        alike = (window["description"] == newest["description"][-1]) & (window["mode"] == Mode.SHADOW)
        if len(window) == count and alike.all():
            evidence.add_window(description, window, fingerprint(window))
            self._window_at_ns = now_ns

    def _save(self) -> None:
        if self._evidence:
            try:
                self._folder.save(self._run_id, self._evidence)
            except OSError as error:
                self._failed(f"evidence for a promotion: {error.strerror or error}")
