"""Reading the ticks of a running controller (`slicepilot.controller.record.ring`) from the file that it maps."""

from __future__ import annotations

import json
import mmap
import os
import stat
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError
from slicepilot.controller.telemetry.layout import BUCKETS

from .header import BEAT_AT, DELAYS_AT, DESCRIPTION_AT, HEADER, MAGIC, NOTES_AT, VERSION, WRITTEN_AT
from .ring import DOCUMENT_BYTES, PAGE, RingLayout

MOST_SLICES, MOST_SLOTS = 4096, 1 << 20
SETTLE_S = 0.1
"""A writer changes a document in microseconds, unless it was killed meanwhile."""


class TickReader:
    """The reading side, read-only.

    Only a ring of root or of the reader's user is read: the owner of a file may shorten it, and reading beyond its end
    kills the reader (SIGBUS, mmap(2)).

    Args:
        path: of a `TickRing`.

    Raises:
        ConfigError: no controller runs there, the file is another user's, or of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Not blocking: a FIFO would wait for a writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise ConfigError(
                f"{path}: no controller runs there; expected the folder of a running controller"
            ) from None
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; expected a user who may read it") from error
        try:
            status = os.fstat(descriptor)
            size, self._identity = status.st_size, (status.st_dev, status.st_ino)
            if status.st_uid not in {0, os.geteuid()}:
                raise ConfigError(f"{path}: belongs to uid {status.st_uid}; expected a file of root or of this user")
            if not stat.S_ISREG(status.st_mode) or size < PAGE:
                raise ConfigError(f"{path}: not a tick ring; expected a file that a controller has made")
            self._memory = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        magic, version, self.num_slices, self.slots, item, records, *_ = HEADER.unpack_from(self._memory, 0)
        if magic != MAGIC or version != VERSION:
            raise ConfigError(f"{path}: tick ring version {version}; expected {VERSION}")
        if not (0 < self.num_slices <= MOST_SLICES and 0 < self.slots <= MOST_SLOTS):
            raise ConfigError(f"{path}: tick ring of {self.num_slices} slices; expected 1 to {MOST_SLICES}")
        layout = self._layout = RingLayout(self.num_slices, self.slots)
        if item != layout.dtype.itemsize or records != layout.records or size < layout.size:
            raise ConfigError(f"{path}: tick ring of another layout")
        self._records: npt.NDArray[Any] = np.frombuffer(self._memory, layout.dtype, self.slots, records)
        self._read = 0
        self._documents: dict[int, tuple[int, dict[str, Any]]] = {}
        self._delays = np.zeros((self.num_slices, BUCKETS), np.uint64)
        self.lost = 0

    @property
    def written(self) -> int:
        return int(struct.unpack_from("=Q", self._memory, WRITTEN_AT)[0])

    @property
    def beat_ns(self) -> int:
        """CLOCK_MONOTONIC of the writer's last heartbeat."""
        return int(struct.unpack_from("=Q", self._memory, BEAT_AT)[0])

    @property
    def replaced(self) -> bool:
        """Whether another ring, or none, has its path now: the writer has ended or was replaced."""
        try:
            now = self.path.stat()
        except OSError:
            return True
        return (now.st_dev, now.st_ino) != self._identity

    def description(self) -> tuple[int, dict[str, Any]]:
        """The description of the run, with its generation; 0 and an empty description before the writer's first.

        If the writer was killed while it changed it, this is the previous description.
        """
        return self._document(DESCRIPTION_AT, self._layout.description)

    def notes(self) -> dict[str, Any]:
        """The notes, which change about once a second; the previous notes if the writer was killed meanwhile."""
        return self._document(NOTES_AT, self._layout.notes)[1]

    def delays(self) -> npt.NDArray[np.uint64]:
        """Packets since the probe's start by delay, (S, BUCKETS); a copy. See `notes` for a killed writer."""
        counts = self._settled(DELAYS_AT, self._layout.delays, self._delays.nbytes)
        if counts is not None:
            self._delays = np.frombuffer(counts[1], np.uint64).reshape(self._delays.shape)
        return self._delays.copy()

    def new(self) -> npt.NDArray[Any]:
        """Records since the last call, oldest first; a copy. Those overwritten before are counted in `lost`."""
        written = self.written
        first = max(self._read, written - self.slots)
        records = self._copy(first, written)
        self.lost += max(0, written - self._read - len(records))
        self._read = written
        return records

    def last(self, count: int) -> npt.NDArray[Any]:
        """The newest records, at most ``count``, oldest first; a copy."""
        written = self.written
        return self._copy(max(0, written - min(count, self.slots)), written)

    def close(self) -> None:
        del self._records
        self._memory.close()

    def _copy(self, first: int, end: int) -> npt.NDArray[Any]:
        """Records [first, end) without those that were overwritten meanwhile."""
        sequence = np.arange(first, end, dtype=np.uint64)
        copied = self._records[(sequence % self.slots).astype(np.int64)]
        # What is overwritten while it is copied has another sequence now, or will have lost it by the next look.
        whole = copied["sequence"] == sequence + 1
        whole &= sequence + self.slots >= self.written
        return copied[whole]

    def _settled(self, generation_at: int, at: int, size: int) -> tuple[int, bytes] | None:
        """Some bytes that no writer changes, with their generation; None if a writer was killed while it did."""
        until_s = time.monotonic() + SETTLE_S
        while time.monotonic() < until_s:
            (before,) = struct.unpack_from("=Q", self._memory, generation_at)
            data = self._memory[at : at + size]
            if before % 2 == 0 and (before,) == struct.unpack_from("=Q", self._memory, generation_at):
                return before, data
        return None

    def _document(self, generation_at: int, at: int) -> tuple[int, dict[str, Any]]:
        settled = self._settled(generation_at, at, DOCUMENT_BYTES)
        known = self._documents.get(at, (0, {}))
        if settled is None or settled[0] == known[0]:
            return known
        generation, data = settled
        try:
            document = json.loads(data[4 : 4 + struct.unpack_from("=I", data)[0]])
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise ConfigError(f"{self.path}: corrupt ring file (invalid JSON)")
        self._documents[at] = generation, document
        return generation, document
