"""All that is known of a controller's ticks: its segments on disk, and what is still in the ring of a running one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slicepilot.configs import ConfigError

from .reader import LOOK_BACK_NS, Moment, SegmentReader, Stretch, moment_in
from .ring_reader import TickReader


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
            raise ConfigError(f"records {str(self.folder)!r}: no ticks; accepted: a folder that a controller wrote to")
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
        """See `moment_in`."""
        return moment_in(list(self.stretches(time_ns - LOOK_BACK_NS, time_ns)), time_ns)


def _recent(ring: Path) -> Stretch | None:
    """What a ring holds of the ticks under its present description; None while it holds none."""
    reader = TickReader(ring)
    try:
        records = reader.last(reader.slots)
        generation, description = reader.description()
    finally:
        reader.close()
    records = records[records["description"] == generation]
    return Stretch(description, records) if len(records) else None
