"""Reading what `slicepilot.controller.record.segments` has written, also while it writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.configs.text import on_a_line

from .columns import read_header, slice_names, to_records
from .ring import Records
from .ring_reader import TickReader
from .segments import SegmentName, list_segments, open_segment


@dataclass(frozen=True)
class Segment:
    """A complete segment; its rows are read on demand.

    Attributes:
        header: see `slicepilot.controller.record.columns.header_of`.
    """

    path: Path
    header: dict[str, Any]

    @property
    def description(self) -> dict[str, Any]:
        return self.header["description"]

    @property
    def names(self) -> tuple[str, ...]:
        return slice_names(self.description)

    def records(self) -> Records:
        """Rows as `slicepilot.controller.record.ring.record_dtype`; raises OSError or ValueError for a damaged file."""
        with open_segment(self.path) as file:
            return to_records(file.read(use_threads=False), self.names)


@dataclass(frozen=True)
class Stretch:
    """Ticks with the same description, oldest first."""

    description: dict[str, Any]
    records: Records

    @property
    def key(self) -> str:
        return self.description["run_id"]


@dataclass(frozen=True)
class Moment:
    """A tick and, if it was recorded, the tick before."""

    description: dict[str, Any]
    record: Any
    before: Any | None


@dataclass
class SegmentReader:
    """The segments of a folder, by time.

    A damaged or foreign file is listed in ``broken`` with the reason, and the others are read. A file that the writer
    deletes meanwhile is ignored.

    Raises:
        ConfigError: the folder does not exist or may not be read.
    """

    folder: Path
    broken: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names()

    def segments(self, start_ns: int | None = None, end_ns: int | None = None) -> Iterator[Segment]:
        """Segments with ticks in [start, end], CLOCK_REALTIME in ns; reads only their headers."""
        names = self._names()
        for index, name in enumerate(names):
            if end_ns is not None and name.time_ns > end_ns:
                return
            # A segment ends when the next of its run begins.
            following = next((n.time_ns for n in names[index + 1 :] if n.run_id == name.run_id), None)
            if start_ns is not None and following is not None and following <= start_ns:
                continue
            header = self._header(name.path)
            if header is not None and (start_ns is None or header["time_ns"][1] >= start_ns):
                yield Segment(name.path, header)

    def span_ns(self) -> tuple[int, int] | None:
        """Times of the first and the last tick; None without any."""
        names = self._names()
        for name in names:
            if self._header(name.path) is not None:
                last = [header["time_ns"][1] for n in names[-2:] if (header := self._header(n.path))]
                return name.time_ns, max(last, default=name.time_ns)
        return None

    def stretches(self, start_ns: int | None = None, end_ns: int | None = None) -> Iterator[Stretch]:
        """Ticks in [start, end], by segment."""
        for segment in self.segments(start_ns, end_ns):
            try:
                records = segment.records()
            except (OSError, ValueError) as error:
                self.note(segment.path, error)
                continue
            yield Stretch(segment.description, _within(records, start_ns, end_ns))

    def _names(self) -> list[SegmentName]:
        try:
            for path in self.folder.iterdir():
                if not path.name.startswith(".") and SegmentName.of(path) is None:
                    self.note(path, "not a segment of records")
            return list_segments(self.folder)
        except OSError as error:
            raise ConfigError(
                f"records {str(self.folder)!r}: {error.strerror}; expected the records folder of a controller"
            ) from error

    def _header(self, path: Path) -> dict[str, Any] | None:
        try:
            with open_segment(path) as file:
                return read_header(file.metadata.metadata)
        except (OSError, ValueError) as error:
            self.note(path, error)
            return None

    def note(self, path: Path, error: Exception | str) -> None:
        """List a damaged file with the first reason, unless it was deleted."""
        if not isinstance(error, FileNotFoundError):
            self.broken.setdefault(on_a_line(path.name), on_a_line(str(error)))


LOOK_BACK_NS = 60_000_000_000
"""Two of the longest control periods."""


def moment_in(stretches: Sequence[Stretch], time_ns: int) -> Moment | None:
    """The last tick at or before a time, with the tick before; None if it is older than a second or two periods, since
    then nothing was recorded at that time."""
    newest: tuple[Stretch, Any] | None = None
    for stretch in stretches:
        records = stretch.records[stretch.records["time_ns"] <= time_ns]
        if len(records) and (newest is None or records[-1]["time_ns"] >= newest[1]["time_ns"]):
            newest = stretch, records[-1]
    if newest is None:
        return None
    stretch, record = newest
    if time_ns - int(record["time_ns"]) > max(1e9, 2e9 * stretch.description["period_s"]):
        return None
    for other in stretches:
        if other.key == stretch.key and other.records.dtype == stretch.records.dtype:
            before = other.records[other.records["sequence"] + 1 == record["sequence"]]
            if len(before):
                return Moment(stretch.description, record, before[0])
    return Moment(stretch.description, record, None)


def _within(records: Records, start_ns: int | None, end_ns: int | None) -> Records:
    inside = np.ones(len(records), np.bool_)
    if start_ns is not None:
        inside &= records["time_ns"] >= start_ns
    if end_ns is not None:
        inside &= records["time_ns"] <= end_ns
    return records[inside]


class TickHistory:
    """Ticks by time.

    Args:
        folder: of the segments.
        ring: file of the ring; without it, or where no controller has made it, there are the segments only.

    Raises:
        ConfigError: neither can be read.
    """

    def __init__(self, folder: Path, ring: Path | None = None) -> None:
        self.folder = folder
        self._recent = None if ring is None or not ring.exists() else _recent(ring)
        self._segments = None if self._recent is not None and not folder.exists() else SegmentReader(folder)

    @property
    def broken(self) -> dict[str, str]:
        """Files of the folder that could not be read, with the reason."""
        return {} if self._segments is None else self._segments.broken

    def span_ns(self) -> tuple[int, int]:
        """Times of the first and the last tick; raises ConfigError without any."""
        span = None if self._segments is None else self._segments.span_ns()
        ends = [] if span is None else list(span)
        if self._recent is not None:
            ends += [int(self._recent.records[at]["time_ns"]) for at in (0, -1)]
        if not ends:
            raise ConfigError(f"records {str(self.folder)!r}: no ticks; expected a folder that a controller wrote to")
        return min(ends), max(ends)

    def stretches(self, start_ns: int, end_ns: int) -> Iterator[Stretch]:
        """Ticks in [start, end], CLOCK_REALTIME in ns; each once."""
        written = 0
        for stretch in () if self._segments is None else self._segments.stretches(start_ns, end_ns):
            if self._recent is not None and stretch.key == self._recent.key and len(stretch.records):
                written = max(written, int(stretch.records[-1]["sequence"]))
            yield stretch
        if self._recent is not None:
            records = self._recent.records
            time_ns = records["time_ns"]
            new = (records["sequence"] > written) & (time_ns >= start_ns) & (time_ns <= end_ns)
            yield Stretch(self._recent.description, records[new])

    def at(self, time_ns: int) -> Moment | None:
        return moment_in(list(self.stretches(time_ns - LOOK_BACK_NS, time_ns)), time_ns)


def _recent(ring: Path) -> Stretch | None:
    """The ticks in a ring that have its present description; None while there are none."""
    reader = TickReader(ring)
    try:
        records = reader.last(reader.slots)
        generation, description = reader.description()
    finally:
        reader.close()
    records = records[records["description"] == generation]
    return Stretch(description, records) if len(records) else None
