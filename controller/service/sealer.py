"""The controller's thread that seals what the loop has recorded (`slicepilot.controller.record.seals`)."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import numpy as np

from slicepilot.controller.record.ring import TickRing
from slicepilot.controller.record.seals import SealLog
from slicepilot.controller.system.realtime import ThreadBesideTheLoop

LOOK_S, SEAL_S = 1.0, 5.0
RING_PARTS = 4
"""A seal has a quarter of the ring's ticks at most: they are all still there when it is looked whether they are."""


class Sealer:
    """Takes new ticks out of the ring about once a second, and seals every few seconds of them.

    A ``with`` block starts and ends it, around the loop. The loop knows nothing of it and waits for none of it: what is
    hashed is the mapped memory itself, without the interpreter's lock. A disk that fails costs seals, and with them
    what a promotion can count; nothing else.

    Args:
        ring: whose ticks; described before the first of them.
        folder: state folder for key and log.
        failed: told what went wrong, in a line.

    Raises:
        ConfigError: others can write to the folder.
        OSError: key or log cannot be made.
    """

    def __init__(self, ring: TickRing, folder: Path, failed: Callable[[str], None]) -> None:
        self._ring, self._log, self._failed = ring, SealLog(folder), failed
        self._ended = threading.Event()
        self._thread = ThreadBesideTheLoop(self._run, "sealer")
        self._block = _Block(ring, 0)

    def __enter__(self) -> Sealer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(LOOK_S + SEAL_S)
        if not self._thread.is_alive():
            self._log.close()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._look()
        self._look()
        self._seal()

    def _look(self) -> None:
        """Take in what is new, and seal what is due."""
        written = self._ring.written
        while self._block.end < written and not self._block.lost:
            if self._block.take(written):
                self._seal()
        if self._block.lost:
            self._failed("seals: ticks were overwritten before they were sealed")
            self._block = _Block(self._ring, self._ring.written)
        elif self._block.lasted_s >= SEAL_S:
            self._seal()

    def _seal(self) -> None:
        block, self._block = self._block, _Block(self._ring, self._block.end)
        if block.end == block.first:
            return
        description = self._ring.descriptions[block.generation]
        try:
            self._log.describe(block.generation, description)
            self._log.add(description["run_id"], block.generation, block.first + 1, block.end, block.digest.hexdigest())
        except OSError as error:
            self._failed(f"seals: {error.strerror or error}")


class _Block:
    """Ticks [first, end) that are to get one seal."""

    def __init__(self, ring: TickRing, first: int) -> None:
        self._ring, self._began_ns, self._last_ns = ring, 0, 0
        self.first = self.end = first
        self.generation = 0
        self.digest = hashlib.sha256()
        self.lost = False

    @property
    def lasted_s(self) -> float:
        """From its first tick to its last."""
        return 1e-9 * (self._last_ns - self._began_ns)

    def take(self, written: int) -> bool:
        """Take ticks up to ``written``; true when none that come after can belong to it."""
        start, most = self.end, self.first + self._ring.slots // RING_PARTS
        ended = False
        for records, memory in self._ring.pieces(start, min(written, most)):
            generations = records["description"]
            if self.end == self.first:
                self.generation, self._began_ns = int(generations[0]), int(records["monotonic_ns"][0])
            others = np.flatnonzero(generations != self.generation)
            count = int(others[0]) if len(others) else len(records)
            self.digest.update(memory[: count * records.dtype.itemsize])
            self.end += count
            if count:
                self._last_ns = int(records["monotonic_ns"][count - 1])
            if count < len(records):
                ended = True
                break
        # The tick that is being written has the slot of the one that was written a whole ring before.
        self.lost = start <= self._ring.written - self._ring.slots
        return ended or self.end == most
