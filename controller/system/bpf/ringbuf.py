"""A BPF ring buffer of records of one size, read in bulk.

Layout: docs.kernel.org/bpf/ringbuf.html: a page with the reader's position, a page with the writers', then the data,
    twice in a row in
memory so that a record never wraps. Each record has a header of eight bytes: length, with a bit while it is being
written.
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
_POSITION = struct.Struct("=Q")


class RingBuffer:
    """Takes records out of a ring buffer; one reader only.

    Args:
        ring: the map.
        dtype: the records.

    A writer that finds no room drops its record: read often enough.
    """

    def __init__(self, ring: Map, dtype: np.dtype[Any]) -> None:
        self._dtype, self._size = dtype, ring.max_entries
        self._stride = HEADER_BYTES + -(-dtype.itemsize // 8) * 8
        page = mmap.PAGESIZE
        self._consumer = mmap.mmap(ring.fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._producer = mmap.mmap(ring.fd, page + 2 * self._size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)

    def read(self) -> npt.NDArray[Any]:
        """What has been written since the last call, a copy."""
        (position,) = _POSITION.unpack_from(self._consumer)
        (written,) = _POSITION.unpack_from(self._producer)
        count = self._finished(position, (written - position) // self._stride)
        start = mmap.PAGESIZE + position % self._size
        records = np.ndarray(count, self._dtype, self._producer, start + HEADER_BYTES, (self._stride,)).copy()
        _POSITION.pack_into(self._consumer, 0, position + count * self._stride)
        return records

    def _finished(self, position: int, count: int) -> int:
        """How many records are whole: they are reserved in order, but may be finished in another."""
        lengths = np.ndarray(count, np.uint32, self._producer, mmap.PAGESIZE + position % self._size, (self._stride,))
        busy = np.flatnonzero(lengths & BUSY)
        return int(busy[0]) if len(busy) else count

    def close(self) -> None:
        """Unmap it."""
        self._consumer.close()
        self._producer.close()
