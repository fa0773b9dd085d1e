"""Records of a running controller on disk: Parquet segments in one folder of bounded size.

A segment is ``RUN-TIME.parquet``, TIME the CLOCK_REALTIME in ns of its first tick. It is written under another name,
synced and renamed: readers see complete segments only, and a crash loses at most the segment in memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from slicepilot.configs import ConfigError
from slicepilot.configs.text import on_a_line
from slicepilot.data.files import LEFTOVERS, replace_file

from .columns import encode, header_of, read_header, slice_names, to_table
from .ring import Records

MOST_BYTES, MOST_DECODED_BYTES = 1 << 27, 1 << 28
MOST_ROWS, MOST_COLUMNS = 1 << 17, 1 << 14
_OPTIONS: dict[str, Any] = {
    "page_checksum_verification": True,
    "pre_buffer": False,
    # Of texts and lists in the footer.
    "thrift_string_size_limit": 1 << 20,
    "thrift_container_size_limit": 1 << 20,
}


@contextlib.contextmanager
def open_segment(path: Path) -> Iterator[pq.ParquetFile]:
    """A Parquet file of a records folder, within limits.

    Raises:
        FileNotFoundError: it has gone.
        ConfigError: anything else that is wrong with it, also what comes up while it is read in the ``with`` block.
    """
    try:
        with os.fdopen(_descriptor(path), "rb") as source, pq.ParquetFile(source, **_OPTIONS) as file:
            _check(file.metadata)
            yield file
    except (FileNotFoundError, ConfigError):
        raise
    except Exception as error:
        # Arrow and NumPy raise errors of many types for invalid bytes.
        raise ConfigError(f"damaged: {on_a_line(str(error)) or type(error).__name__}") from error


def _descriptor(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        what = "a link" if error.errno == errno.ELOOP else error.strerror
        raise ConfigError(f"{what}; expected a file of the controller's publisher") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
        os.close(descriptor)
        raise ConfigError(f"not a regular file of at most {MOST_BYTES} bytes")
    return descriptor


def _check(metadata: Any) -> None:
    decoded = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    for what, count, most in (
        ("rows", metadata.num_rows, MOST_ROWS),
        ("columns", metadata.num_columns, MOST_COLUMNS),
        ("bytes once decoded", decoded, MOST_DECODED_BYTES),
    ):
        if not 0 <= count <= most:
            raise ConfigError(f"{count} {what}; expected at most {most}")


SEGMENT_S = 15.0
"""Less than what the ring holds at 5 ms (20 s), so that the successor of a killed writer can read all ticks there."""
MAX_ROWS, MAX_BUFFER_BYTES = 1 << 16, 1 << 26
NAME = re.compile(r"(?P<run>[A-Za-z0-9][A-Za-z0-9_.-]{0,63})-(?P<time>\d{16,20})\.parquet")


@dataclass(frozen=True, order=True)
class SegmentName:
    """The parts of a file's name; in order of time."""

    time_ns: int
    run_id: str
    path: Path

    @classmethod
    def of(cls, path: Path) -> SegmentName | None:
        match = NAME.fullmatch(path.name)
        return match and cls(int(match["time"]), match["run"], path)


def list_segments(folder: Path) -> list[SegmentName]:
    """The segments of a folder by time; raises OSError."""
    return sorted(filter(None, map(SegmentName.of, folder.iterdir())))


class SegmentWriter:
    """Collects records and writes them as segments. Errors of the disk are counted, not raised.

    Args:
        folder: made if it is missing; other files in it are kept.
        max_bytes: limit of all segments together; the oldest are removed first, whatever their run.
        segment_s: length of a segment.

    Attributes:
        segments: written so far.
        bytes: size of all segments of the folder.
        dropped_rows: ticks that could not be written.
        errors: failures to write or to delete; ``last_error`` is the newest.

    Raises:
        OSError: the folder cannot be made or listed.
        ValueError: limits that are not positive.
    """

    def __init__(self, folder: Path, max_bytes: int, segment_s: float = SEGMENT_S) -> None:
        if max_bytes <= 0 or segment_s <= 0:
            raise ValueError(f"max_bytes = {max_bytes}, segment_s = {segment_s:g}: expected more than 0")
        self.folder, self.max_bytes, self.segment_s = folder, max_bytes, segment_s
        self.segments = self.dropped_rows = self.errors = 0
        self.last_error: str | None = None
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(LEFTOVERS):  # of a writer that was killed
            leftover.unlink(missing_ok=True)
        self._sizes = {name: name.path.stat().st_size for name in list_segments(folder)}
        self.bytes = sum(self._sizes.values())
        self._descriptions: dict[int, dict[str, Any]] = {}  # of the run that is being collected, by generation
        self._run_id = ""
        self._parts: list[Records] = []
        self._rows = 0
        self._generation = 0
        self._last: dict[str, int] = {}

    def add(self, records: Records, description: dict[str, Any], generation: int) -> None:
        """Add ticks of a run, oldest first; those that a former writer has written are ignored.

        ``description`` and its ``generation`` are to be read after the records (`TickReader.new`, then
        `TickReader.description`); a segment ends where records refer to another.

        Raises:
            ValueError: the run's name is not a valid file name.
        """
        run_id: str = description["run_id"]
        if not NAME.fullmatch(f"{run_id}-{0:016d}.parquet"):
            raise ValueError(f"run_id = {run_id!r}: expected 1 to 64 letters, digits, '_', '.' and '-'")
        if run_id != self._run_id:
            self.flush()
            self._run_id, self._descriptions = run_id, {}
        self._descriptions[generation] = description
        if run_id not in self._last:
            self._last[run_id] = self._last_on_disk(run_id)
        records = records[records["sequence"] > self._last[run_id]]
        if not len(records):
            return
        self._last[run_id] = int(records["sequence"][-1])
        for part in np.split(records, np.flatnonzero(np.diff(records["description"])) + 1):
            self._add_part(part)
        for old in [known for known in self._descriptions if known not in (generation, self._generation)]:
            del self._descriptions[old]

    def flush(self) -> None:
        if self._parts:
            records = np.concatenate(self._parts)
            known = self._descriptions
            description = known.get(self._generation) or known[max(known)]
            self._parts, self._rows = [], 0
            table = to_table(records, slice_names(description))
            name = f"{description['run_id']}-{int(records['time_ns'][0]):019d}.parquet"
            if self._write(name, encode(table, header_of(records, description, self._generation))):
                self.segments += 1
            else:
                self.dropped_rows += len(records)

    def close(self) -> None:
        self.flush()

    def _add_part(self, part: Records) -> None:
        """Records under the same description."""
        generation = int(part["description"][0])
        if self._parts and (generation != self._generation or part.dtype != self._parts[0].dtype):
            self.flush()
        self._generation = generation
        limit = min(MAX_ROWS, max(1, MAX_BUFFER_BYTES // part.dtype.itemsize))
        while len(part):
            taken, part = np.split(part, [limit - self._rows])
            self._parts.append(taken)
            self._rows += len(taken)
            lasted_ns = int(taken["monotonic_ns"][-1]) - int(self._parts[0]["monotonic_ns"][0])
            if self._rows == limit or lasted_ns >= 1e9 * self.segment_s:
                self.flush()

    def _write(self, name: str, data: bytes) -> bool:
        """Write a file; returns whether it was written."""
        path = self.folder / name
        try:
            self._make_room(len(data))
            replace_file(path, data)
        except OSError as error:
            self._note(f"{name}: {error.strerror or error}")
            return False
        written = SegmentName.of(path)
        assert written is not None
        self._sizes[written] = len(data)
        self.bytes += len(data)
        return True

    def _make_room(self, size: int) -> None:
        if size > self.max_bytes:
            raise OSError(f"{size} bytes; expected at most {self.max_bytes}")
        for name in sorted(self._sizes):
            if self.bytes + size <= self.max_bytes:
                return
            name.path.unlink(missing_ok=True)
            self.bytes -= self._sizes.pop(name)

    def _last_on_disk(self, run_id: str) -> int:
        """The last tick of a run that a segment holds; 0 without any."""
        for name in sorted(self._sizes, reverse=True):
            if name.run_id == run_id:
                try:
                    with open_segment(name.path) as file:
                        return int(read_header(file.metadata.metadata)["sequence"][1])
                except (OSError, ValueError) as error:
                    self._note(f"{name.path.name}: {error}")
        return 0

    def _note(self, error: str) -> None:
        self.errors += 1
        self.last_error = error
