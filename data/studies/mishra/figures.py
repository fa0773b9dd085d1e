"""Figures of released forwarding delays and PFCP latencies.

Each goes through a file once and holds no rows, so that memory does not grow with the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from slicepilot.data.arrow import codes_of, values_of
from slicepilot.data.csv.chunks import OnProgress
from slicepilot.data.faults import Faults
from slicepilot.data.tables.tally import Ints, Tally, runs

from .tables import MAX_NAMES, checked_forwarding, checked_pfcp

LEVELS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
LOADS = ("light", "medium", "heavy")


@dataclass(frozen=True)
class Figures:
    """Figures of a set of times; quantiles are within 0.2%, all else is exact.

    Attributes:
        count: how many.
        std_us: of a sample (n - 1).
        quantiles_us: by the names of `LEVELS`, interpolated between neighbours in rank.
    """

    name: str
    count: int
    mean_us: float
    std_us: float
    min_us: float
    max_us: float
    quantiles_us: dict[str, float]


@dataclass(frozen=True)
class SliceFigures(Figures):
    """One slice's packets: `Figures` of their delays, bytes, and when the first came and the last left."""

    bytes: int
    first_received_ns: int
    last_sent_ns: int

    @property
    def seconds(self) -> float:
        """From the first packet's arrival to the last one's leaving."""
        return (self.last_sent_ns - self.first_received_ns) / 1e9

    @property
    def mean_mbps(self) -> float:
        """Megabits a second over that time."""
        return 8e-6 * self.bytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class ForwardingSummary:
    """A forwarding file by slice, in order of first appearance.

    Attributes:
        rows: how many are good.
        load: ``light``, ``medium`` or ``heavy`` where the file's name says so, else empty.
    """

    rows: int
    load: str
    slices: tuple[SliceFigures, ...]

    def published(self) -> list[dict[str, Any]]:
        """Rows of the study's table, as ``reference/mishra_forwarding_delay.csv`` has them."""
        return _published_delays(self.slices, self.load)


@dataclass(frozen=True)
class PfcpSummary:
    """A PFCP file by type of message; ``load`` as in `ForwardingSummary`."""

    rows: int
    load: str
    types: tuple[Figures, ...]

    def published(self) -> list[dict[str, Any]]:
        """Rows of the study's table, as ``reference/mishra_pfcp_latency.csv`` has them."""
        return _published_latencies(self.types, self.load)


def summarise_forwarding(path: str | Path, faults: Faults, on_progress: OnProgress | None = None) -> ForwardingSummary:
    """Figures of a forwarding file by slice; raises as `forwarding_batches` does."""
    tally = Tally()
    names: tuple[str, ...] = ()
    totals = np.tile(np.asarray([0, np.iinfo(np.int64).max, 0]), (MAX_NAMES, 1))
    for rows in checked_forwarding(path, faults, on_progress):
        names = rows.names
        tally.add(rows.slices, rows.values("delay_us"), len(names))
        _add_up(rows.slices, rows.values("pkt_len"), rows.values("ts_rx_ns"), rows.values("ts_tx_ns"), totals)
    slices = []
    for g, figures in _figures(tally, names):
        num_bytes, first_ns, last_ns = totals[g].tolist()
        slices.append(SliceFigures(**figures, bytes=num_bytes, first_received_ns=first_ns, last_sent_ns=last_ns))
    return ForwardingSummary(int(tally.count.sum()), load_of(path), tuple(slices))


def summarise_pfcp(path: str | Path, faults: Faults, on_progress: OnProgress | None = None) -> PfcpSummary:
    """Figures of a PFCP file by type of message; raises as `slicepilot.data.studies.mishra.tables.pfcp_batches`."""
    tally = Tally()
    names: tuple[str, ...] = ()
    for rows in checked_pfcp(path, faults, on_progress):
        names = rows.names
        tally.add(rows.types, rows.latency_us, len(names))
    types = tuple(Figures(**figures) for _, figures in _figures(tally, names))
    return PfcpSummary(int(tally.count.sum()), load_of(path), types)


class StudyTable:
    """Rows of the study's table out of a tidy table whose batches go by: of delays by slice, or latencies by type.

    Args:
        schema: `slicepilot.data.studies.mishra.tables.FORWARDING` or `PFCP`.
        source: the file that the rows are from; its name says the load.
    """

    def __init__(self, schema: pa.Schema, source: str | Path) -> None:
        self._forwarding = "delay_us" in schema.names
        self._columns = ("slice", "delay_us") if self._forwarding else ("message_type", "latency_us")
        self._load, self._tally = load_of(source), Tally()
        self._numbers: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """More rows."""
        codes, words = codes_of(batch.column(self._columns[0]))
        own = np.asarray([self._numbers.setdefault(word, len(self._numbers)) for word in words], np.int64)
        self._tally.add(own[codes], values_of(batch.column(self._columns[1])), len(self._numbers))

    def published(self) -> list[dict[str, Any]]:
        """As `ForwardingSummary.published` or `PfcpSummary.published`, of all rows so far."""
        result = [Figures(**figures) for _, figures in _figures(self._tally, tuple(self._numbers))]
        rows = _published_delays if self._forwarding else _published_latencies
        return rows(result, self._load)


def load_of(path: str | Path) -> str:
    """The load that a file's name ends with, as those of the study do; empty where it does not."""
    words = Path(path).name.split(".")[0].lower().split("_")
    return next((word for word in reversed(words) if word in LOADS), "")


def _published_delays(slices: Sequence[Figures], load: str) -> list[dict[str, Any]]:
    return [
        {
            "slice": item.name,
            "load": load,
            "n": item.count,
            "mean_us": item.mean_us,
            "p50_us": item.quantiles_us["p50"],
            "p99_us": item.quantiles_us["p99"],
        }
        for item in slices
    ]


def _published_latencies(types: Sequence[Figures], load: str) -> list[dict[str, Any]]:
    return [
        {"load": load, "type": item.name, "n": item.count, "mean_us": item.mean_us, "p99_us": item.quantiles_us["p99"]}
        for item in types
    ]


def _figures(tally: Tally, names: Sequence[str]) -> list[tuple[int, dict[str, Any]]]:
    """The fields of `Figures` for each group that has any value, with its number."""
    mean, std, quantiles = tally.mean(), tally.std(), tally.quantiles(tuple(LEVELS.values()))
    return [
        (
            g,
            {
                "name": names[g],
                "count": int(tally.count[g]),
                "mean_us": float(mean[g]),
                "std_us": float(std[g]),
                "min_us": float(tally.least[g]),
                "max_us": float(tally.greatest[g]),
                "quantiles_us": dict(zip(LEVELS, quantiles[g].tolist(), strict=True)),
            },
        )
        for g in np.flatnonzero(tally.count).tolist()
    ]


def _add_up(slices: Ints, packet_bytes: npt.NDArray[np.int32], received_ns: Ints, sent_ns: Ints, totals: Ints) -> None:
    """Add packets (N,) to the rows of their slices (G, 3): bytes, when the first came, when the last left."""
    order, starts, present = runs(slices)
    first, last = np.minimum.reduceat(received_ns[order], starts), np.maximum.reduceat(sent_ns[order], starts)
    totals[present, 0] += np.add.reduceat(packet_bytes[order], starts, dtype=np.int64)
    totals[present, 1] = np.minimum(totals[present, 1], first)
    totals[present, 2] = np.maximum(totals[present, 2], last)
