"""The header of a tick ring's file, without NumPy, for a reader that only needs the heartbeat."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

MAGIC, VERSION = b"SPTICKS\0", 3
HEADER = struct.Struct("=8sIIIIQQQQQQ")
"""magic, version, slices, slots, record size, offset of records, written records, beat (CLOCK_MONOTONIC ns),
generations of description, notes, delays."""
WRITTEN_AT, BEAT_AT, DESCRIPTION_AT, NOTES_AT, DELAYS_AT = 32, 40, 48, 56, 64


class Pulse:
    """The heartbeat of a tick ring's writer.

    Raises:
        OSError: it cannot be mapped.
        ValueError: not a tick ring of this version.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._memory = mmap.mmap(descriptor, HEADER.size, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        magic, version, *_ = HEADER.unpack_from(self._memory)
        if (magic, version) != (MAGIC, VERSION):
            raise ValueError(f"{path}: not a tick ring of version {VERSION}")

    def beat_ns(self) -> int:
        return int(struct.unpack_from("=Q", self._memory, BEAT_AT)[0])

    def close(self) -> None:
        self._memory.close()
