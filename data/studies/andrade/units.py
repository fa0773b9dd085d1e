"""The unit of an export of Andrade and Wickboldt, detected from what a slice that carries video can show.

The study's own scripts multiply CPU use and latency by 1000 to get mCPU and ms, so its exports have CPUs and seconds,
and divide received rates by 2^20, so these are bit/s (and the published figures in "Mbps" are Mibit/s). Exports that
were made otherwise are recognised where their figures leave no doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.data.faults import DatasetError, Faults

MIXED_SHARE = 0.05  # of series or rows in another unit that make a file unusable; fewer are noted
STARTED_S = 60  # from when on every slice that has traffic shows it


@dataclass(frozen=True)
class Unit:
    """A unit that an export may have.

    Attributes:
        factor: to the tidy table's.
        low, high: between these lies a series' extreme (`Collection.extreme`); None: never guessed.
        row_low, row_high: between these lies every value above 0 of a slice with traffic.
    """

    name: str
    factor: float
    low: float | None = None
    high: float | None = None
    row_low: float = 0.0
    row_high: float = np.inf


@dataclass(frozen=True)
class Collection:
    """One collection: its column in the tidy table, the units it may have, and which extreme tells them apart."""

    name: str
    column: str
    extreme: Literal["largest", "smallest"]
    units: tuple[Unit, ...]


# The node has four logical CPUs and 1 Gbit/s. Slices with traffic carry 45 Mbit/s at the start, which costs a fifth of
# a CPU and takes some 30 ms; shaped to 75 Mbit/s they later carry 1.6 Mbit/s and wait for 100 s.
COLLECTIONS = {
    "cpu": Collection(
        "cpu",
        "cpu_use_mcpu",
        "largest",
        (Unit("CPU", 1e3, 0.01, 5.0, 1e-4, 5.0), Unit("mCPU", 1.0, 10.0, 5e3, 0.5, 5e3), Unit("%", 10.0)),
    ),
    "latency": Collection(
        "latency",
        "latency_ms",
        "smallest",
        (Unit("s", 1e3, 1e-4, 5.0, 1e-4, 300.0), Unit("ms", 1.0, 5.0, 1e5, 5.0, 3e5), Unit("us", 1e-3)),
    ),
    "receive": Collection(
        "receive",
        "receive_mbps",
        "largest",
        (
            Unit("bit/s", 1e-6, 1e6, 1e9, 1e4, 1e9),
            Unit("kbit/s", 1e-3, 1e3, 1e6, 10.0, 1e6),
            Unit("Mbit/s", 1.0, 1.0, 1e3, 1e-2, 1e3),
            Unit("Mibit/s", 2**20 / 1e6),
            Unit("B/s", 8e-6),
        ),
    ),
}


def unit_of(collection: str, given: Sequence[str]) -> str | None:
    """Which of some units a collection is in; None if it has none of them.

    Raises:
        ConfigError: a unit of no collection, or two units of this collection.
    """
    names = {unit.name: own.name for own in COLLECTIONS.values() for unit in own.units}
    for name in given:
        if name not in names:
            accepted = "; ".join(f"{own.name}: {', '.join(u.name for u in own.units)}" for own in COLLECTIONS.values())
            raise ConfigError(f"unit = {name!r}: expected {accepted}")
    own_names = list(dict.fromkeys(name for name in given if names[name] == collection))
    if len(own_names) > 1:
        raise ConfigError(f"unit = {', '.join(own_names)}: expected a single unit for {collection}")
    return own_names[0] if own_names else None


def choose_unit(
    path: Path, own: Collection, columns: dict[str, Any], active: Any, faults: Faults, given: str | None
) -> Unit:
    """The unit of a file's values.

    Args:
        columns: ``experiment``, ``cycle``, ``time_s``, ``value``, ``line`` (N,) and ``workload``.
        active: (N,), the slice had traffic.
        faults: ``unit`` where single values look like another unit; they are kept.
        given: name of the unit, if the user says which it is.

    Raises:
        ValueError: the collection does not have the given unit.
        DatasetError: mixed units, or a unit that cannot be detected.
    """
    names = [unit.name for unit in own.units]
    if given is not None:
        return own.units[names.index(given)]
    rows = np.flatnonzero(active & (columns["value"] > 0))
    extremes = _extremes(own, columns, rows)
    values = columns["value"][extremes]
    votes = np.full(len(extremes), -1)
    for index, unit in enumerate(own.units):
        if unit.low is not None and unit.high is not None:
            votes[(values >= unit.low) & (values < unit.high)] = index
    counts = np.bincount(votes[votes >= 0], minlength=len(names))
    if not counts.sum():
        shown = f"{values.min():g} to {values.max():g}" if len(values) else "none above 0"
        raise DatasetError.at(
            path, f"value: its unit cannot be detected ({own.extreme} of each series: {shown}); expected --unit UNIT "
            f"with one of {', '.join(names)}"
        )  # fmt: skip
    chosen = int(counts.argmax())
    unit = own.units[chosen]
    others = extremes[(votes >= 0) & (votes != chosen)]
    started = rows[columns["time_s"][rows] >= STARTED_S]
    odd = started[(columns["value"][started] < unit.row_low) | (columns["value"][started] > unit.row_high)]
    if len(others) > MIXED_SHARE * counts.sum() or len(odd) > MIXED_SHARE * len(started):
        other = others[0] if len(others) else odd[0]
        like = extremes[votes == chosen][0]
        raise DatasetError.at(
            path,
            f"mixed units: value = {columns['value'][other]:g}, but {columns['value'][like]:g} ({unit.name}) in line "
            f"{columns['line'][like]}; expected one unit in all documents",
            int(columns["line"][other]),
        )
    doubtful = np.union1d(others, odd)
    faults.add_many("unit", columns["line"][doubtful], "value", columns["value"][doubtful].tolist(), left_out=False)
    return unit


def _extremes(own: Collection, columns: dict[str, Any], rows: Any) -> Any:
    """The row with the extreme value of each series (experiment, cycle, workload)."""
    _, workload = np.unique(np.asarray(columns["workload"])[rows], return_inverse=True)
    keys = np.stack([columns["experiment"][rows], columns["cycle"][rows], workload], axis=1)
    _, series = np.unique(keys, axis=0, return_inverse=True)
    sign = -1.0 if own.extreme == "largest" else 1.0
    order = np.lexsort((sign * columns["value"][rows], series.reshape(-1)))
    first = np.ones(len(order), np.bool_)
    first[1:] = np.diff(series.reshape(-1)[order]) != 0
    return rows[order[first]]
