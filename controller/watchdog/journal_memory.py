"""The journal as controller and supervisor share it: in memory that outlives the controller and that no path leads to.

A memfd (memfd_create(2)) with two slots that are written in turns: a number, the length, a checksum, the bytes. The
newest whole one counts, so that a controller that is killed amid writing leaves the one before. No bytes stand for a
journal that is not needed any more: everything was put back. Disks may be full, read-only or unmounted meanwhile, and
files removed or changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct

SLOT_BYTES = 8 << 20
"""Room for 64 slices with some hundred threads each, tenfold; pages that are not written take no memory."""
_HEAD = struct.Struct("<QQ32s")  # number, length, SHA-256 of number, length and bytes


class JournalMemory:
    """Args: descriptor: of a memfd that `create` has made, here or in the controller; owned."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def create(cls) -> JournalMemory:
        """A new one, without a journal; raises OSError."""
        descriptor = os.memfd_create("slicepilot-journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, 2 * SLOT_BYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return cls(descriptor)

    def write(self, data: bytes) -> None:
        """Replace what is there; raises ValueError for more than there is room for, OSError without memory."""
        if len(data) > SLOT_BYTES - _HEAD.size:
            raise ValueError(f"journal: {len(data)} bytes; accepted: {SLOT_BYTES - _HEAD.size} at most")
        number = max((slot[0] for slot in self._slots()), default=0) + 1
        at = number % 2 * SLOT_BYTES
        os.pwrite(self.descriptor, data, at + _HEAD.size)
        os.pwrite(self.descriptor, _head(number, data), at)

    def read(self) -> bytes:
        """The newest; empty where nothing is left to put back, or nothing was ever written."""
        return max(self._slots(), default=(0, b""))[1]

    def close(self) -> None:
        """Release it; the other process still has it."""
        os.close(self.descriptor)

    def _slots(self) -> list[tuple[int, bytes]]:
        """Number and bytes of each that is whole."""
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
