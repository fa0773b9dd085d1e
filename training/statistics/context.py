"""Load while a delay was measured, from other columns or another table.

A `Context` is shown all rows by ``see``, with the number of the table that they are from, and makes covariates of some
of them (M,) by ``beside``: ``loads``, by the name that the regression has for them, and what each is. These rows must
have kept `SOURCE` and the columns ``numbers`` and ``texts``; ``note`` is what to know about the covariates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from slicepilot.configs import ConfigError
from slicepilot.data.intervals import Array
from slicepilot.data.tables.tidy import Stream

from .columns import loads_of

RECEIVED_NS, SEQUENCE = "received_ns", "sequence"
SOURCE = "source"
"""Of the rows that are kept: the number of the table that they are from."""
RUN = ("qfi", "condition")
"""Columns that identify a run of Moreira et al."""
NS = 1e9
LEAST_PART = 0.1  # of a second that a rate is worked out from

Rows = Mapping[str, npt.NDArray[Any]]


class PacketRate:
    """Packets of all groups of a table that were received in the same second, by the part of it that there are packets
    of: a file begins and ends amid a second. The clocks of different files say nothing of each other."""

    numbers: tuple[str, ...] = (RECEIVED_NS,)
    texts: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.loads: Mapping[str, str] = {"packets": "packets_per_s"}
        self.note = "packets_per_s: packets of all groups of a table that were received in the same second"
        # Of each second of a table's clock: packets, and the times of the first and the last, ns.
        self._seconds: dict[tuple[int, int], tuple[int, float, float]] = {}

    def see(self, batch: pa.RecordBatch, source: int) -> None:
        """Count."""
        received_ns = np.sort(numbers(batch.column(RECEIVED_NS)))
        seconds = received_ns // NS
        edges = np.flatnonzero(np.diff(seconds, prepend=np.nan, append=np.nan) != 0).tolist()
        for start, end in pairwise(edges):
            first, last = float(received_ns[start]), float(received_ns[end - 1])
            key = source, int(seconds[start])
            packets, earliest, latest = self._seconds.get(key, (0, first, last))
            self._seconds[key] = packets + end - start, min(earliest, first), max(latest, last)

    def beside(self, rows: Rows) -> dict[str, Array]:
        """The rate in each row's second."""
        rates = {key: self._rate(*key) for key in self._seconds}
        keys = zip(rows[SOURCE].tolist(), (rows[RECEIVED_NS] // NS).tolist(), strict=True)
        return {"packets": np.asarray([rates[key] for key in keys], np.float64)}

    def _rate(self, source: int, second: int) -> float:
        packets, first_ns, last_ns = self._seconds[source, second]
        start_ns = second * NS if (source, second - 1) in self._seconds else first_ns
        end_ns = (second + 1) * NS if (source, second + 1) in self._seconds else last_ns
        return packets / max((end_ns - start_ns) / NS, LEAST_PART)


class RunResources:
    """CPU and packet rate of the UPF's container during the run that a latency belongs to.

    The latencies carry no time, only their order: those of a table and a run are spread evenly over the run's seconds.

    Args:
        tables: of resources, a row per second in order of time, with the columns of `RUN`.

    Raises:
        ConfigError: what reading them raises.
    """

    numbers: tuple[str, ...] = (SEQUENCE,)
    texts: tuple[str, ...] = RUN

    def __init__(self, tables: Iterable[Stream]) -> None:
        self.loads: Mapping[str, str] = {}
        self.note = "latencies carry no time: those of a run are spread evenly over its seconds of resources"
        self._seconds: dict[tuple[str, ...], dict[str, list[Array]]] = {}
        self._latencies: Counter[tuple[Any, ...]] = Counter()
        for table in tables:
            self.loads = self.loads or loads_of(table.schema)
            if absent := {*self.loads.values(), *RUN} - set(table.schema.names):
                raise ConfigError(f"resources: a table without {min(absent)}; expected tables of the same kind")
            for batch in table.batches:
                self._keep(batch)

    def _keep(self, batch: pa.RecordBatch) -> None:
        runs = list(zip(*(texts(batch.column(name)) for name in RUN), strict=True))
        for run in dict.fromkeys(runs):
            mine = np.asarray([own == run for own in runs], np.bool_)
            own = self._seconds.setdefault(run, {term: [] for term in self.loads})
            for term, name in self.loads.items():
                own[term].append(numbers(batch.column(name))[mine])

    def see(self, batch: pa.RecordBatch, source: int) -> None:
        """Count the latencies of each run."""
        counted = pa.Table.from_batches([batch]).group_by(list(RUN)).aggregate([([], "count_all")])
        runs = ((source, *run) for run in zip(*(texts(counted.column(name)) for name in RUN), strict=True))
        self._latencies.update(dict(zip(runs, counted.column("count_all").to_pylist(), strict=True)))

    def beside(self, rows: Rows) -> dict[str, Array]:
        """The resources of each row's second, NaN where its run has none."""
        result = {term: np.full(len(rows[SEQUENCE]), np.nan) for term in self.loads}
        keys = zip(rows[SOURCE].tolist(), *(rows[name] for name in RUN), strict=True)
        share = (rows[SEQUENCE] + 0.5) / np.asarray([self._latencies[key] for key in keys], np.float64)
        for run, own in self._seconds.items():
            mine = np.logical_and.reduce([rows[name] == word for name, word in zip(RUN, run, strict=True)])
            for term, parts in own.items():
                seconds = np.concatenate(parts)
                result[term][mine] = seconds[
                    np.minimum((share[mine] * len(seconds)).astype(np.int64), len(seconds) - 1)
                ]
        return result


Context = PacketRate | RunResources


def numbers(column: pa.Array) -> Array:
    """As float64 (N,), NaN for missing values."""
    return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)


def texts(column: Any) -> list[str]:
    """As text (N,), empty for missing values."""
    return ["" if value is None else str(value) for value in column.to_pylist()]
