"""Decision records and estimates, made by a thread of their own: a slow disk holds up neither pages nor control."""

from __future__ import annotations

import queue
import tempfile
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.controller.record.ring import Records, record_dtype
from slicepilot.env.knobs import KNOB_FIELDS
from slicepilot.env.telemetry import SLICE_FIELDS

from .logs import EventLogger

if TYPE_CHECKING:
    from slicepilot.controller.record.estimate import Estimator
    from slicepilot.controller.record.segments import SegmentWriter

BACKLOG = 40
"""Batches that may wait: 40 s at a batch a second, 10 s while clients read all the time."""
MIB = 1 << 20
Batch = tuple[Records, dict[str, Any], int]


class Recorder:
    """Writes ticks to disk as segments, and estimates what a shadow run's policy would have changed.

    Args:
        folder, max_mb: of the segments, and the disk space that they may take; 0 writes none.
        estimate_s: seconds between estimates; 0 makes none.
        log: for errors.

    Attributes:
        estimate: the newest, None before the first.
        dropped: ticks that were dropped because the thread was busy.
        failure: the error that ended the thread; None while it runs.
    """

    def __init__(self, folder: Path, max_mb: float, estimate_s: float, log: EventLogger) -> None:
        self._writer = _writer(folder, round(max_mb * MIB)) if max_mb else None
        self._estimate_s, self._log = estimate_s, log
        self.estimate: dict[str, Any] | None = None
        self.dropped = 0
        self.failure: Exception | None = None
        self._estimator: Estimator | None = None
        self._batches: queue.Queue[Batch | None] = queue.Queue(BACKLOG)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def warm_up(self, description: dict[str, Any], num_slices: int) -> None:
        """Do the thread's work once, so that libraries, compiled code and hardware files are loaded while this process
        may still read them."""
        if self._estimate_s:
            from slicepilot.controller.record.estimate import window_ticks

            records = _made_up(2 * window_ticks(description["period_s"]), description["period_s"], num_slices)
            # The second is for later.
            warmed_up, self._estimator = self._make_estimator(description), self._make_estimator(description)
            if warmed_up is not None:
                warmed_up.add(records[:1])
                warmed_up.add(records)
        if self._writer is not None:
            with tempfile.TemporaryDirectory() as folder:
                writer = _writer(Path(folder), MIB)
                writer.add(_made_up(10, description["period_s"], num_slices), description, 0)
                writer.close()

    def start(self) -> None:
        """Begin to work; privileges have to be given up before."""
        self._thread.start()

    def add(self, records: Records, description: dict[str, Any], generation: int) -> None:
        """Hand over ticks, oldest first, with the newest description; never waits."""
        if not len(records):
            return
        try:
            self._batches.put_nowait((records, description, generation))
        except queue.Full:
            self.dropped += len(records)

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what has been handed over, and end."""
        if self._thread.is_alive():
            self._batches.put(None)
            self._thread.join(timeout_s)

    def figures(self, overwritten: int = 0) -> dict[str, tuple[float, str]]:
        """Metrics, by name: value and help text. ``overwritten`` ticks were gone before they could be handed over."""
        writer, text = self._writer, "Ticks without a record: overwritten before they were read, or recorder busy."
        if writer is None:
            return {"records_lost_ticks_total": (float(self.dropped), text)}
        return {
            "records_lost_ticks_total": (float(self.dropped + overwritten), text),
            "records_segments_total": (float(writer.segments), "Segments of decision records written."),
            "records_size_bytes": (float(writer.bytes), "Disk space of all segments."),
            "records_dropped_ticks_total": (float(writer.dropped_rows), "Ticks that could not be written to disk."),
            "records_errors_total": (float(writer.errors), "Failures to write or delete a segment."),
        }

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 (ends the process, which is started anew)
            self.failure = error
            self._log.error("recorder", trace=traceback.format_exc())

    def _work(self) -> None:
        writer, estimator, errors = self._writer, self._estimator, 0
        while (batch := self._batches.get()) is not None:
            records, description, generation = batch
            if writer is not None:
                writer.add(records, description, generation)
                if writer.errors > errors:
                    errors = writer.errors
                    self._log.warning("records", error=writer.last_error, errors=errors)
            if estimator is None:
                continue
            estimator.description = description  # the policy may change in a run, the node does not
            estimate = estimator.add(records)
            if estimate is not None:
                self.estimate = estimate
        if writer is not None:
            writer.close()

    def _make_estimator(self, description: dict[str, Any]) -> Estimator | None:
        from slicepilot.controller.record.estimate import Estimator

        try:
            return Estimator(description, self._estimate_s)
        except ConfigError as error:  # hardware that was never identified
            self._log.info("no_estimates", why=str(error))
            return None


def _writer(folder: Path, max_bytes: int) -> SegmentWriter:
    from slicepilot.controller.record.segments import SegmentWriter

    return SegmentWriter(folder, max_bytes)


def _made_up(count: int, period_s: float, num_slices: int) -> Records:
    """Uneventful ticks of a shadow run."""
    records = np.zeros(count, record_dtype(num_slices))
    records["sequence"] = np.arange(1, count + 1)
    records["monotonic_ns"] = records["time_ns"] = np.arange(count) * round(1e9 * period_s)
    records["slices"][:, SLICE_FIELDS.index("offered_mbps")] = 1.0
    records["slices"][:, SLICE_FIELDS.index("carried_mbps")] = 1.0
    records["slices"][:, SLICE_FIELDS.index("delay_p99_us")] = 1000.0
    records["valid"] = 1
    records["drawn"] = np.nan
    for stage in ("wanted", "allowed", "applied"):
        records[stage][:, [KNOB_FIELDS.index("cpu_limit_mcpu"), KNOB_FIELDS.index("egress_mbps")]] = np.inf
    return records
