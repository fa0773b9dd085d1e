"""Times of a tick's stages: noted row by row at next to no cost, and counted many at once."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from slicepilot.controller.telemetry.histogram import counts_of, quantiles_us
from slicepilot.controller.telemetry.layout import BUCKETS

ROWS = 512  # noted before they are counted
QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}


class StageTimes:
    """Durations of stages by their names, in the buckets of the delay histograms."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        row = struct.Struct(f"={len(names)}q")
        self._pack, self._row_bytes = row.pack_into, row.size
        self._rows, self._end = bytearray(ROWS * row.size), 0
        self._counts = np.zeros((len(names), BUCKETS), np.int64)

    def note(self, *durations_ns: int) -> None:
        """Keep a row: a duration of each stage."""
        self._pack(self._rows, self._end, *durations_ns)
        self._end += self._row_bytes
        if self._end == len(self._rows):
            self._count()

    def summary_us(self) -> dict[str, dict[str, float]]:
        """``p50``, ``p99`` and ``p999`` of each stage in microseconds; NaN without any row."""
        self._count()
        rows = quantiles_us(self._counts, tuple(QUANTILES.values())).tolist()
        return {name: dict(zip(QUANTILES, row, strict=True)) for name, row in zip(self._names, rows, strict=True)}

    def _count(self) -> None:
        self._counts += counts_of(np.frombuffer(self._rows, np.int64, self._end // 8).reshape(-1, len(self._names)))
        self._end = 0
