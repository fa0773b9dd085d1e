"""Delays by group out of tables of any size, with a sample of whole rows to explain them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from slicepilot.configs import ConfigError
from slicepilot.data.intervals import Array
from slicepilot.data.tables.tidy import Stream

from .columns import Columns, choose, in_order
from .context import RECEIVED_NS, RUN, SEQUENCE, SOURCE, Context, PacketRate, RunResources, numbers, texts

MAX_VALUES = 24_000_000
"""Delays that are kept: all that is done with them takes less than 2 GB."""
MAX_ROWS = 20_000
"""Rows that are kept for regression and curves."""
MAX_GROUPS = 40


@dataclass(frozen=True)
class Source:
    """A table, and the name of its file or folder."""

    name: str
    stream: Stream


@dataclass(frozen=True)
class Delays:
    """The delays and rows that were read.

    Attributes:
        columns: the chosen columns.
        groups: delays of each group, ascending (N,), in the natural order of the groups' names.
        rows: a sample of rows: ``delay``, ``group``, and each covariate by its name in the regression, (M,) each.
        read: rows with a delay and a group; ``missing``: rows without.
        share: part of the rows read that is kept in ``groups``, 1 if it is all of them.
        rows_shares: part of each group's rows that is kept in ``rows``; smaller for large groups.
        notes: what to know about covariates that were not in the tables.
    """

    columns: Columns
    groups: Mapping[str, Array]
    rows: Mapping[str, npt.NDArray[Any]]
    read: int
    missing: int
    share: float
    rows_shares: Mapping[str, float]
    notes: tuple[str, ...]


def collect(
    sources: Sequence[Source],
    value: str | None = None,
    by: str | None = None,
    on: Sequence[str] | None = None,
    resources: Sequence[Stream] = (),
    seed: int = 0,
    on_rows: Callable[[int], None] = lambda rows: None,
    max_values: int = MAX_VALUES,
    max_rows: int = MAX_ROWS,
) -> Delays:
    """Read all sources once.

    Covariates that no column has are worked out where they can be, see `slicepilot.training.statistics.context`.

    Args:
        sources: tables with the same columns, at least one.
        value, by, on: see `slicepilot.training.statistics.columns.choose`.
        resources: tables that go with those of latencies in ``sources``.
        seed: of the samples, where all is too much.
        on_rows: called with the number of rows read.
        max_values: delays that are kept; ``max_rows``: whole rows.

    Raises:
        ConfigError: no delays, columns that are not there, too many groups, or what reading the sources raises.
    """
    schema = sources[0].stream.schema
    columns = choose(schema, value, by, on)
    contexts: list[Context] = []
    if on is None and {*RUN, SEQUENCE} <= set(schema.names) and resources:
        contexts.append(RunResources(resources))
    elif on is None and "packets" not in columns.loads and RECEIVED_NS in schema.names:
        contexts.append(PacketRate())
    kept = _Kept(columns, contexts, np.random.default_rng(seed), max_values, max_rows)
    needed = {*columns.all, *(name for context in contexts for name in (*context.numbers, *context.texts))}
    for number, source in enumerate(sources):
        if absent := needed - set(source.stream.schema.names):
            raise ConfigError(
                f"{source.name}: no column {min(absent)} as in {sources[0].name}; expected tables of the same kind"
            )
        for batch in source.stream.batches:
            kept.add(source.name, number, batch)
            on_rows(kept.read + kept.missing)
    return kept.finish()


class _Kept:
    """The sample of the rows so far."""

    def __init__(
        self,
        columns: Columns,
        contexts: Sequence[Context],
        rng: np.random.Generator,
        max_values: int,
        max_rows: int,
    ) -> None:
        self.columns, self.contexts = columns, contexts
        self.read = self.missing = 0
        self._rng, self._max_values, self._max_rows = rng, max_values, max_rows
        self._values: dict[str, list[Array]] = {}
        self._num_values = self._num_rows = 0
        self._share = 1.0
        self._rows_shares: dict[str, float] = {}
        self._rows: list[dict[str, npt.NDArray[Any]]] = []

    def add(self, file: str, source: int, batch: pa.RecordBatch) -> None:
        """Add a batch of a table, with the name and number of the table."""
        delays = numbers(batch.column(self.columns.value))
        names, codes = self._groups(file, batch)
        good = np.isfinite(delays) & (codes >= 0)
        self.missing += int((~good).sum())
        self.read += int(good.sum())
        for context in self.contexts:
            context.see(batch, source)
        self._keep_values(delays, names, codes, good)
        self._keep_rows(batch, source, delays, names, codes, good)

    def _groups(self, file: str, batch: pa.RecordBatch) -> tuple[list[str], npt.NDArray[Any]]:
        """Names of groups and each row's index into them, -1 for rows without a group."""
        if self.columns.by_file:
            return [file], np.zeros(batch.num_rows, np.int8)
        column = batch.column(self.columns.by)
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        names = [str(name) for name in coded.dictionary.to_pylist()]
        new = [name for name in names if name not in self._values]
        if len(self._values) + len(new) > MAX_GROUPS:
            raise ConfigError(f"by = {self.columns.by}: more than {MAX_GROUPS} groups: expected a column with fewer")
        return names, pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)

    def _keep_values(self, delays: Array, names: list[str], codes: npt.NDArray[Any], good: npt.NDArray[Any]) -> None:
        kept = good if self._share == 1.0 else good & (self._rng.random(len(good)) < self._share)
        for index, name in enumerate(names):
            chosen = delays[kept & (codes == index)]
            if len(chosen):
                self._values.setdefault(name, []).append(chosen)
                self._num_values += len(chosen)
        while self._num_values > self._max_values:
            self._share /= 2
            for name, parts in self._values.items():
                whole = np.concatenate(parts)
                self._values[name] = [whole[self._rng.random(len(whole)) < 0.5]]
            self._num_values = sum(len(part) for parts in self._values.values() for part in parts)

    def _keep_rows(
        self,
        batch: pa.RecordBatch,
        source: int,
        delays: Array,
        names: list[str],
        codes: npt.NDArray[Any],
        good: npt.NDArray[Any],
    ) -> None:
        # Rows without a group get the last group's share, and are not good.
        shares = np.asarray([self._rows_shares.setdefault(name, 1.0) for name in names] or [1.0])[codes]
        chosen = np.flatnonzero(good & (self._rng.random(len(good)) < shares))
        if not len(chosen):
            return
        taken = batch.take(pa.array(chosen))
        own = {"delay": delays[chosen], "group": np.asarray(names, object)[codes[chosen]]}
        plain, words = dict(self.columns.loads), dict.fromkeys(self.columns.kinds)
        for context in self.contexts:
            plain |= {name: name for name in context.numbers}
            words |= dict.fromkeys(context.texts)
        own |= {term: numbers(taken.column(name)) for term, name in plain.items()}
        own |= {name: np.asarray(texts(taken.column(name)), object) for name in words}
        if self.contexts:
            own[SOURCE] = np.full(len(chosen), source)
        self._rows.append(own)
        self._num_rows += len(chosen)
        if self._num_rows > self._max_rows:
            self._drop_rows()

    def _drop_rows(self) -> None:
        """Halve the largest group until there is room, so that rare groups keep their rows."""
        whole = _joined(self._rows)
        positions = {name: np.flatnonzero(whole["group"] == name) for name in self._rows_shares}
        while sum(map(len, positions.values())) > self._max_rows:
            largest = max(positions, key=lambda name: len(positions[name]))
            positions[largest] = positions[largest][self._rng.random(len(positions[largest])) < 0.5]
            self._rows_shares[largest] /= 2
        kept = np.sort(np.concatenate(list(positions.values())))
        self._rows, self._num_rows = [{name: column[kept] for name, column in whole.items()}], len(kept)

    def finish(self) -> Delays:
        """All of it."""
        groups = {}
        for name in in_order(self._values):
            groups[name] = np.concatenate(self._values.pop(name))
            groups[name].sort()
        if not groups:
            raise ConfigError(
                f"{self.columns.value}: no row has a delay and a {self.columns.by}; expected at least two that have"
            )
        rows, loads = _joined(self._rows), dict(self.columns.loads)
        for context in self.contexts:
            rows |= context.beside(rows)
            loads = {**context.loads, **loads}
        columns = replace(self.columns, loads=loads)
        notes = tuple(context.note for context in self.contexts)
        return Delays(columns, groups, rows, self.read, self.missing, self._share, self._rows_shares, notes)


def _joined(rows: Sequence[Mapping[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in rows]) for name in rows[0]} if rows else {}
