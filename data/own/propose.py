"""Propose a map for files, with their probable contents and what is uncertain."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.configs import ConfigError, validate
from slicepilot.configs.limited_yaml import parse_yaml
from slicepilot.data.faults import DatasetError, Faults
from slicepilot.data.tables.tidy import Stream, unit_of

from .entries import entry_of
from .join import joined
from .look import Look, look_at
from .map import FILE, DataMap
from .map_text import Entry, doubts_of, period_for, scalar, written_map
from .needs import lacking
from .reading import read_files
from .rows import Floats, Rows

MOST_SEEN = 200_000
"""Rows by which promises are guessed."""


@dataclass(frozen=True)
class Proposal:
    """A map as it is written, and what to know of it.

    Attributes:
        text: YAML with comments.
        unsure: what is not sure, a line each.
        rows: of the table that the map makes of the files; quantities: its columns.
        missing: what episodes lack, empty where the map makes some.
    """

    text: str
    unsure: tuple[str, ...]
    formats: dict[Path, str]
    rows: int
    quantities: tuple[str, ...]
    missing: tuple[str, ...]


def propose(paths: Sequence[Path]) -> Proposal:
    """Look at files and propose a map, with which they can be imported.

    Raises:
        DatasetError: a file that cannot be used.
    """
    if twice := next((path for n, path in enumerate(paths) if path.name in {own.name for own in paths[:n]}), None):
        raise DatasetError.at(twice, "a second file of this name; expected files of different names")
    looks = [look_at(path) for path in paths]
    entries = _entries(looks)
    period = None
    text = written_map(entries, None, ())
    rows = _tried(text, paths, entries)
    step = _step(rows)
    if len(entries) > 1:
        period = None if step is None else period_for(step)  # in which every file has a measurement
        text = written_map(entries, period, ())
    table = joined(rows, period)
    if period is None and "packet_bytes" in table.schema.names:
        step = max(step or 1.0, 1.0)  # packets, not samples
    count = sum(batch.num_rows for batch in table.batches)
    quantities = tuple(name for name in table.schema.names if unit_of(name) or name not in table.groups)
    quantities = tuple(name for name in quantities if name not in {"time", "time_s"})
    missing, lines = _episodes(rows, quantities, step if period is None else period, period)
    text = written_map(entries, period, lines, step)
    unsure = [f"{own.fields['match']}: {doubt}" for own in entries for doubt in doubts_of(own)]
    return Proposal(
        text,
        tuple(unsure),
        {look.path: look.format for look in looks},
        count,
        quantities,
        tuple(missing),
    )


def _head(table: Stream) -> dict[str, list[Any]]:
    """The first rows of a table, by column."""
    columns: dict[str, list[Any]] = {name: [] for name in table.schema.names}
    for batch in table.batches:
        for name, own in columns.items():
            own.extend(batch.column(name).slice(0, MOST_SEEN - len(own)).to_pylist())
    return columns


def _tried(text: str, paths: Sequence[Path], entries: list[Entry]) -> list[Any]:
    """The files read by the map; with the name of their file where they would clash else."""
    rows = read_files(_parsed(text), paths, Faults())
    try:
        joined(rows, None)
    except DatasetError as error:
        if "keep: [file]" not in str(error):
            raise
        for entry in entries:
            if len(entry.paths) > 1 and FILE not in entry.fields.get("keep", ()):
                entry.fields["keep"] = [*entry.fields.get("keep", ()), FILE]
                entry.doubts["keep"] = "files have the same times: each is a run of its own"
        rows = read_files(_parsed(written_map(entries, None, ())), paths, Faults())
        joined(rows, None)
    return rows


def _parsed(text: str) -> DataMap:
    return validate(DataMap, parse_yaml(text.encode(), "the proposed map"), "the proposed map")


def _entries(looks: Sequence[Look]) -> list[Entry]:
    groups: dict[Any, list[Look]] = {}
    for look in looks:
        key: Any = look.format
        if look.columns:
            key = (look.format, tuple(column.name for column in look.columns))
        elif look.format == "netdata":
            key = (look.format, str(look.document.get("labels", look.document.get("result", {}).get("labels"))))
        elif look.format == "prometheus":
            key = (look.format, look.path.name)
        groups.setdefault(key, []).append(look)
    result = []
    names = [look.path.name for look in looks]
    for own in groups.values():
        entry = entry_of(own)
        entry.paths = [look.path for look in own]
        entry.fields = {"match": _pattern([path.name for path in entry.paths], names), **entry.fields}
        result.append(entry)
    # The first that matches counts: plain names before patterns.
    return sorted(result, key=lambda entry: "*" in entry.fields["match"])


def _common(names: Sequence[str]) -> str:
    shortest = min(names, key=len)
    same = (len({name[index] for name in names}) == 1 for index in range(len(shortest)))
    return shortest[: next((index for index, alike in enumerate(same) if not alike), len(shortest))]


def _pattern(own: Sequence[str], every: Sequence[str]) -> str:
    """A file's name, or a pattern of several names, that matches no other file."""
    plain = [re.sub(r"([\[\]*?])", r"[\1]", name) for name in own]
    if len(own) == 1:
        return plain[0]
    first = _common(own)
    last = _common([name[len(first) :][::-1] for name in own])[::-1]
    first, last = (re.sub(r"[\[\]*?]", "?", text) for text in (first, last))
    pattern = f"{first}*{last}"
    others = [name for name in every if name not in own and fnmatch.fnmatchcase(name, pattern)]
    if others:
        raise ConfigError(
            f"files = {own[0]!r}: no pattern fits it and {own[1]} but not {others[0]}; expected maps of their own"
        )
    return pattern


# Periods and episodes


def _step(rows: Sequence[Any]) -> float | None:
    """The usual step between measurements of a slice, in seconds."""
    steps = []
    for own in rows:
        if own.time_ns is None or len(own) < 3:
            continue
        stamps = np.unique(own.time_ns[own.slices.codes == own.slices.codes[0]])
        gaps = np.diff(stamps)
        if len(gaps):
            steps.append(float(np.median(gaps)) / 1e9)
    return max(steps) if steps else None


def _episodes(
    rows: Sequence[Rows], quantities: Sequence[str], step: float | None, period: float | None
) -> tuple[list[str], list[str]]:
    """What the table lacks for episodes, and the section of the map that makes them if it lacks nothing."""
    missing = lacking([*quantities, *(() if step is None else ("time_s",))])
    knobs = [text for text in missing if text.startswith("a knob")]
    if set(missing) - set(knobs):
        return missing, []
    lines = ["episodes:                     # for `slicepilot train --offline`"]
    lines += [f"  period_s: {period_for(step or 1.0):g}"] if period is None else []
    lines += ["  knobs: none                 # unsure: the files log none; were none set?"] if knobs else []
    lines += ["  slices:                     # unsure: what each is promised; guessed by what it offered"]
    columns = _head(joined(rows, period or period_for(step or 1.0)))
    lines += [f"    - {_promise(columns, name)}" for name in sorted({word for word in columns["slice"] if word})]
    # The file does not show whether knobs were set.
    return missing, [f"# {line}" for line in lines] if knobs else lines


def _promise(columns: dict[str, list[Any]], name: str) -> str:
    def known(column: str) -> Floats:
        pairs = zip(columns.get(column, ()), columns["slice"], strict=False)
        return np.asarray([value for value, own in pairs if own == name and value is not None], np.float64)

    offered = known("offered_mbps")
    delays = known("delay_p99_us")
    delays = delays if len(delays) else known("delay_us")
    delays = delays if len(delays) else 1e3 * known("latency_ms")
    rate = float(np.median(offered)) if len(offered) else 1.0
    bound = 2e-3 * float(np.quantile(delays, 0.9)) if len(delays) else 10.0
    return f"{{name: {scalar(name)}, committed_mbps: {max(rate, 0.001):.2g}, delay_bound_ms: {max(bound, 0.001):.2g}}}"
