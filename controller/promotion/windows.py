"""Estimates with the simulator what a bundle would have changed over the windows in its controller's evidence."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.controller.record.estimate import Estimator
from slicepilot.controller.record.reader import SegmentReader
from slicepilot.controller.record.ring import Records, fingerprint

from .evidence import Evidence, Window


@dataclass
class ReplayedWindows:
    """Estimates (`slicepilot.controller.record.estimate`) of windows with unchanged ticks in the records.

    Attributes:
        estimates: one per window that could be replayed.
        missing: windows with missing or changed ticks, after the first complete window: older segments may have been
            removed.
        windows: all from the first complete window on.
    """

    estimates: list[dict[str, Any]] = field(default_factory=list)
    missing: int = 0
    windows: int = 0

    @classmethod
    def of(cls, evidence: Evidence, reader: SegmentReader) -> ReplayedWindows:
        """Read and replay all windows of some evidence."""
        replayed = cls()
        estimators = [_estimator(description) for description in evidence.descriptions]
        for window in evidence.windows:
            records = _ticks(window, reader)
            replayed.missing += records is None and replayed.windows > 0
            replayed.windows += records is not None or replayed.windows > 0
            estimator = estimators[window.description]
            if records is not None and estimator is not None:
                estimate = estimator.estimate(records)
                if estimate is not None:
                    replayed.estimates.append(estimate)
        return replayed


def _ticks(window: Window, reader: SegmentReader) -> Records | None:
    """The ticks of a window as the loop wrote them; None if the records do not have them."""
    parts: list[Records] = []
    for stretch in reader.stretches(window.start_ns, window.end_ns):
        records = stretch.records
        inside = (records["sequence"] >= window.first) & (records["sequence"] <= window.last)
        if stretch.key == window.run_id and inside.any() and (not parts or records.dtype == parts[0].dtype):
            parts.append(records[inside])
    if not parts:
        return None
    records = np.concatenate(parts)
    return records if hmac.compare_digest(fingerprint(records), window.sha256) else None


def _estimator(description: dict[str, Any]) -> Estimator | None:
    try:
        return Estimator(description)
    except ConfigError:  # hardware that was never identified
        return None
