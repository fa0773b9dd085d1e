"""The journal in memory that controller and supervisor share, which outlives the controller and has no path.

A memfd (memfd_create(2)) with two slots that are written in turns: a number, the length, a checksum, the bytes. The
newest complete slot counts, so that a controller that is killed while it writes leaves the previous journal. An empty
journal means that everything was restored. Files may be removed or changed meanwhile.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct

SLOT_BYTES = 8 << 20
"""Ten times what 64 slices with a hundred threads each need; unwritten pages take no memory."""
_HEAD = struct.Struct("<QQ32s")  # number, length, SHA-256 of number, length and bytes


class JournalMemory:
    """Args: descriptor: of a memfd that `create` has made, here or in the controller; owned."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def create(cls) -> JournalMemory:
        """New memory without a journal; raises OSError."""
        descriptor = os.memfd_create("slicepilot-journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, 2 * SLOT_BYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return cls(descriptor)

    def write(self, data: bytes) -> None:
        """Replace the journal; raises ValueError if it is too large, OSError without memory."""
        if len(data) > SLOT_BYTES - _HEAD.size:
            raise ValueError(f"journal: {len(data)} bytes; expected at most {SLOT_BYTES - _HEAD.size}")
        number = max((slot[0] for slot in self._slots()), default=0) + 1
        at = number % 2 * SLOT_BYTES
        os.pwrite(self.descriptor, data, at + _HEAD.size)
        os.pwrite(self.descriptor, _head(number, data), at)

    def read(self) -> bytes:
        """The newest journal; empty if there is nothing to restore, or nothing was written yet."""
        return max(self._slots(), default=(0, b""))[1]

    def close(self) -> None:
        """Release it; the other process keeps its descriptor."""
        os.close(self.descriptor)

    def _slots(self) -> list[tuple[int, bytes]]:
        """Number and bytes of each complete slot."""
        whole = []
        for at in (0, SLOT_BYTES):
            head = os.pread(self.descriptor, _HEAD.size, at)
            number, length, _ = _HEAD.unpack(head)
            if number > 0 and length <= SLOT_BYTES - _HEAD.size:
                data = os.pread(self.descriptor, length, at + _HEAD.size)
                if head == _head(number, data):
                    whole.append((number, data))
        return whole


def _head(number: int, data: bytes) -> bytes:
    counted = struct.pack("<QQ", number, len(data))
    return counted + hashlib.sha256(counted + data).digest()
