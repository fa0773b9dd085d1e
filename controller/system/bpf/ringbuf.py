"""BPF ring buffers: records of a fixed size are read in bulk, records of any size individually.

Layout: docs.kernel.org/bpf/ringbuf.html: a page with the reader's position, a page with the writers', then the data,
twice in a row in memory so that a record never wraps. Each record has a header of eight bytes: length, with a bit
while it is being written.
"""

from __future__ import annotations

import mmap
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from .libbpf import Map

HEADER_BYTES = 8
BUSY, DISCARDED = 1 << 31, 1 << 30
_POSITION, _LENGTH = struct.Struct("=Q"), struct.Struct("=I")


class _Memory:
    """A ring buffer as it is mapped."""

    def __init__(self, ring: Map) -> None:
        self._size = ring.max_entries
        page = mmap.PAGESIZE
        self._consumer = mmap.mmap(ring.fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._producer = mmap.mmap(ring.fd, page + 2 * self._size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)

    def close(self) -> None:
        self._consumer.close()
        self._producer.close()


class RingBuffer(_Memory):
    """Takes records out of a ring buffer; one reader only.

    Args:
        ring: the map.
        dtype: the records.

    A writer that finds no room drops its record: read often enough.
    """

    def __init__(self, ring: Map, dtype: np.dtype[Any]) -> None:
        super().__init__(ring)
        self._dtype = dtype
        self._stride = HEADER_BYTES + -(-dtype.itemsize // 8) * 8

    def read(self) -> npt.NDArray[Any]:
        """A copy of the records that were written since the last call."""
        (position,) = _POSITION.unpack_from(self._consumer)
        (written,) = _POSITION.unpack_from(self._producer)
        count, start = (written - position) // self._stride, mmap.PAGESIZE + position % self._size
        # They are reserved in order, but may be finished in another.
        lengths = np.ndarray(count, np.uint32, self._producer, start, (self._stride,))
        busy = np.flatnonzero(lengths & BUSY)
        count = int(busy[0]) if len(busy) else count
        records = np.ndarray(count, self._dtype, self._producer, start + HEADER_BYTES, (self._stride,)).copy()
        _POSITION.pack_into(self._consumer, 0, position + count * self._stride)
        return records


class RecordRing(_Memory):
    """Takes records of different lengths out of a ring buffer; one reader only. Writers as with `RingBuffer`."""

    def next(self) -> bytes | None:
        """The oldest record that was not taken yet, a copy; None where there is none, or it is being written."""
        while True:
            (position,) = _POSITION.unpack_from(self._consumer)
            (written,) = _POSITION.unpack_from(self._producer)
            if position == written:
                return None
            start = mmap.PAGESIZE + position % self._size
            (header,) = _LENGTH.unpack_from(self._producer, start)
            if header & BUSY:
                return None
            length = header & ~DISCARDED
            record = self._producer[start + HEADER_BYTES : start + HEADER_BYTES + length]
            _POSITION.pack_into(self._consumer, 0, position + -(-(HEADER_BYTES + length) // 8) * 8)
            if not header & DISCARDED:
                return record
