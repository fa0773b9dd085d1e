"""Rows of a file, as they are read and as they are mapped; texts to numbers and times."""

from __future__ import annotations

import datetime
import math
import re
import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError, did_you_mean
from slicepilot.configs.text import few
from slicepilot.data.faults import DatasetError, Faults

from .map import NS_OF, PER_TIME, FileMap
from .units import factor, known_unit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MOST_VALUES = 100_000_000
"""Numbers in a table and its sources: 800 MB."""
MOST_COLUMNS = 1024
MOST_WORDS = 100_000
YEARS_NS = 9_000_000_000_000_000_000  # about the year 2255, as far as int64 counts
NOTHING = frozenset(
    {"", "nan", "null", "none", "undefined", "n/a", "na", "-", "--", "no data", "(null)", "+nan", "-nan"}
)
NO_LIMIT = frozenset({"inf", "+inf", "infinity", "max", "unlimited", "none", "no limit", "-1"})
LIMITS = frozenset({"cpu_limit_mcpu", "egress_mbps"})
"""Knobs that may have no limit, which is infinite."""
_NUMBER = re.compile(r"([-+]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4})?)\s*(.{0,20})")
_BIG = 1e30


@dataclass(frozen=True)
class Words:
    """A column of words: codes (N,), -1 for none, and the word of each code."""

    codes: npt.NDArray[np.int32]
    names: tuple[str, ...]

    @classmethod
    def all_of(cls, name: str, rows: int) -> Words:
        return cls(np.zeros(rows, np.int32), (name,))

    @classmethod
    def of(cls, texts: Sequence[str | None]) -> Words:
        known: dict[str, int] = {}
        codes = [-1 if not text else known.setdefault(text, len(known)) for text in texts]
        return cls(np.asarray(codes, np.int32), tuple(known))

    @classmethod
    def joined(cls, parts: Sequence[Words]) -> Words:
        """Columns below each other."""
        known: dict[str, int] = {}
        codes = [
            np.asarray([known.setdefault(name, len(known)) for name in part.names] + [-1], np.int32)[part.codes]
            for part in parts
        ]
        return cls(np.concatenate(codes), tuple(known))

    def take(self, rows: Any) -> Words:
        """Some of the rows: a mask (N,) or indices."""
        return Words(self.codes[rows], self.names)


@dataclass(frozen=True)
class Raw:
    """A file as it was read, N rows.

    Attributes:
        time_ns: (N,) since 1970, or since the start where ``absolute`` is False; None: rows have no time.
        words: columns of words; values: columns of numbers (N,), NaN for none.
        lines: of the file, from 1 (N,).
    """

    rows: int
    time_ns: Ints | None
    absolute: bool
    words: dict[str, Words]
    values: dict[str, Floats]
    lines: Ints


@dataclass(frozen=True)
class Rows:
    """Rows of the table from one file, N of them.

    Attributes:
        time_ns, absolute: as in `Raw`.
        values: (N,) by the table's column, in its unit.
        captured: they are packets of captures.
    """

    path: Path
    time_ns: Ints | None
    absolute: bool
    slices: Words
    values: dict[str, Floats]
    words: dict[str, Words] = field(default_factory=dict)
    captured: bool = False

    def __len__(self) -> int:
        return len(self.slices.codes)


def require_columns(path: Path, named: Sequence[str], there: Sequence[str]) -> None:
    """Raises DatasetError for a column that a map names and a file lacks."""
    for name in named:
        if name not in there:
            raise DatasetError.at(path, f"column {name!r}: {did_you_mean(name, there, f'one of {few(there, 12)}')}")


def number_of(text: str, decimal: str = ".", quantity: str = "") -> tuple[float, str | None] | None:
    """A number and the unit after it; NaN for words for a missing value; None for any other text."""
    plain = text.strip()
    if quantity in LIMITS and plain.lower() in NO_LIMIT:
        return math.inf, None
    if plain.lower() in NOTHING:
        return math.nan, None
    if decimal == ",":
        plain = plain.replace(".", "").replace(",", ".")
    match = _NUMBER.fullmatch(plain)
    if match is None:
        return None
    unit = match[2].strip()
    if unit == "m" and quantity.endswith("_mcpu"):
        unit = "mCPU"  # Kubernetes' thousandths
    known = known_unit(unit) if unit else None
    if unit and known is None:
        return None
    value = float(match[1].replace("_", ""))
    return (value, known) if abs(value) < _BIG else None


def numbers_of(column: Words, lines: Ints, name: str, entry: FileMap, quantity: str, faults: Faults) -> Floats:
    """Values (N,) of a column of texts; a text that is no number is noted and is NaN.

    A number with its own unit is converted to the unit in the map.
    """
    mapped = entry.columns.get(name)
    own = None if mapped is None else mapped.unit
    known = np.full(len(column.names) + 1, np.nan)
    bad = np.zeros(len(column.names) + 1, np.bool_)
    for code, text in enumerate(column.names):
        parsed = number_of(text, entry.decimal, quantity)
        if parsed is None:
            bad[code] = True
            continue
        value, unit = parsed
        if unit is not None and mapped is not None:
            try:
                value *= factor(unit, mapped.quantity, mapped.counter) / factor(own, mapped.quantity, mapped.counter)
            except ConfigError:
                bad[code] = True
                continue
        known[code] = value
    wrong = bad[column.codes]
    if wrong.any():
        texts = [column.names[code] for code in column.codes[wrong][:40].tolist()]
        faults.add_many("number", lines[wrong], name, texts, left_out=False)
    return known[column.codes]


def checked(values: Floats, lines: Ints, name: str, faults: Faults, quantity: str = "") -> Floats:
    """The values, with NaN for infinite or implausibly large values, which are noted."""
    allowed = np.isnan(values) | (np.abs(values) < _BIG)
    if quantity in LIMITS:
        allowed |= values == np.inf
    if allowed.all():
        return values
    faults.add_many("range", lines[~allowed], name, values[~allowed][:40], left_out=False)
    return np.where(allowed, values, np.nan)


def times_of_numbers(values: Floats, entry: FileMap, lines: Ints, faults: Faults) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Nanoseconds (N,) of numbers, rounded, and which are times; others are noted."""
    per = NS_OF.get(entry.time_unit, 1e9)
    good = np.isfinite(values) & (np.abs(values) * per < YEARS_NS)
    faults.add_many("range", lines[~good], entry.time, values[~good][:40])
    scaled = np.where(good, values, 0.0) * (per / PER_TIME)
    return (np.rint(scaled).astype(np.int64) * PER_TIME), good


def zone_of(name: str) -> datetime.tzinfo:
    """A time zone by name; raises ConfigError for an unknown name."""
    if name == "UTC":
        return datetime.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(f"time_zone = {name!r}: expected a name such as Europe/Berlin") from None


_UTC = re.compile(r" ?(UTC|GMT|Z)$", re.IGNORECASE)


def date_ns(text: str, zone: datetime.tzinfo, form: str | None = None) -> int | None:
    """Nanoseconds since 1970 of a date, in whole microseconds; None for other texts."""
    plain = text.strip()
    try:
        if form is None:
            moment = datetime.datetime.fromisoformat(_UTC.sub("+00:00", plain))
        else:
            moment = datetime.datetime.strptime(plain, form)
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
        since = aware - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    except (ValueError, OverflowError):
        return None
    ns = ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000
    return ns if abs(ns) < YEARS_NS else None


def times_of_texts(column: Words, entry: FileMap, lines: Ints, faults: Faults) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """As `times_of_numbers`, of dates."""
    zone = zone_of(entry.time_zone)
    known = [date_ns(text, zone, entry.time_format) for text in column.names]
    stamps = np.asarray([0 if ns is None else ns for ns in known] + [0], np.int64)
    there = np.asarray([ns is not None for ns in known] + [False], np.bool_)
    good = there[column.codes]
    names = [column.names[code] if code >= 0 else "" for code in column.codes[~good][:40].tolist()]
    faults.add_many("number", lines[~good], entry.time, names)
    return stamps[column.codes], good
