"""CSV of any tool: delimiter, decimal sign and the position of the header are detected."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute

from slicepilot.data.arrow import values_of
from slicepilot.data.csv.blocks import Block, read_blocks
from slicepilot.data.csv.chunks import OnProgress, other_kind_of, read_start, utf16_of
from slicepilot.data.faults import DatasetError, Faults

from .map import Decimal, Delimiter, FileMap
from .rows import (
    LIMITS,
    MOST_COLUMNS,
    MOST_VALUES,
    MOST_WORDS,
    NOTHING,
    Floats,
    Ints,
    Raw,
    Words,
    checked,
    number_of,
    numbers_of,
    require_columns,
    times_of_numbers,
    times_of_texts,
)

compute: Any = pyarrow.compute  # its functions are made when it is loaded

DELIMITERS: tuple[Delimiter, ...] = get_args(Delimiter)
START_BYTES = 1 << 18
_COMMA_NUMBER = re.compile(r"[-+]?\d+,\d+")


@dataclass(frozen=True)
class Layout:
    """How a file is written.

    Attributes:
        names: of the columns; delimiter, decimal: as in `slicepilot.data.own.map.FileMap`.
        skip: lines before the header.
    """

    names: tuple[str, ...]
    delimiter: Delimiter
    decimal: Decimal
    skip: int


def layout_of(path: Path, delimiter: Delimiter | None = None) -> Layout:
    """How a CSV file is written, by its first lines.

    Raises:
        DatasetError: it cannot be read, is empty or no text, has no header, or too many columns.
    """
    start = read_start(path, START_BYTES)
    if not start:
        raise DatasetError.at(path, "is empty; expected a file with measurements")
    if utf16_of(start) is not None:
        raise DatasetError.at(path, "is UTF-16; expected UTF-8")
    if (kind := other_kind_of(start)) or b"\0" in start:
        raise DatasetError.at(path, f"is {kind or 'no text'}; expected CSV in UTF-8")
    lines = re.split(r"\r\n|\n|\r", start.decode("utf-8-sig", "replace"))
    skip = 0
    while skip + 1 < len(lines) and _before_header(lines[skip], lines[skip + 1]):
        skip += 1
    header, rest = lines[skip], [line for line in lines[skip + 1 : skip + 20] if line.strip()]
    likely: Delimiter = max(DELIMITERS, key=lambda mark: _fields(header, mark))
    chosen = delimiter or likely
    names = tuple(name.strip() for name in _split(header, chosen))
    if len(names) > MOST_COLUMNS:
        raise DatasetError.at(path, f"{len(names):,} columns; expected at most {MOST_COLUMNS:,}", skip + 1)
    if rest and all(number_of(name) is not None for name in names if name):
        raise DatasetError.at(path, "the first line has no names; expected a header with a name for each column", 1)
    fields = [field for line in rest for field in _split(line, chosen)]
    commas = chosen != "," and any(_COMMA_NUMBER.fullmatch(field.strip()) for field in fields)
    return Layout(names, chosen, "," if commas else ".", skip)


def _before_header(line: str, following: str) -> bool:
    """Whether a line is a comment, or Excel's hint at the delimiter, and not a header after a number sign."""
    if not line.strip() or line.lower().startswith("sep="):
        return True
    if not line.startswith("#"):
        return False
    if following.startswith("#"):
        return True
    mark = max(DELIMITERS, key=lambda mark: _fields(line, mark))
    first = following.split(mark, maxsplit=1)[0].strip().strip('"')
    return not (_fields(line, mark) == _fields(following, mark) > 1 and first[:1].isdigit())


def _split(line: str, delimiter: str) -> list[str]:
    """The fields of a line; none if the line is longer than the csv module accepts."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _fields(line: str, delimiter: str) -> int:
    return len(_split(line, delimiter))


def read_csv(path: Path, entry: FileMap, faults: Faults, on_progress: OnProgress | None = None) -> Raw:
    """The columns that a map names.

    Raises:
        DatasetError: as `layout_of` and `slicepilot.data.csv.blocks.read_blocks`; a column that is not there.
    """
    layout = layout_of(path, entry.delimiter)
    numbers = [entry.value] if entry.value is not None else list(entry.columns)
    texts = entry.labels
    require_columns(path, [name for name in (entry.time, *texts, *numbers) if name is not None], layout.names)
    parts = _Parts(path, entry, numbers, texts, faults)
    for block in read_blocks(
        path, {}, faults, others=pa.string(), delimiter=layout.delimiter, skip=layout.skip, on_progress=on_progress
    ):
        parts.add(block)
    return parts.whole()


class _Parts:
    """Columns of the blocks that went by."""

    def __init__(self, path: Path, entry: FileMap, numbers: list[str], texts: list[str], faults: Faults) -> None:
        self._path, self._entry, self._faults = path, entry, faults
        self._numbers: dict[str, list[Floats]] = {name: [] for name in numbers}
        self._codes: dict[str, list[Any]] = {name: [] for name in texts}
        self._known: dict[str, dict[str, int]] = {name: {} for name in texts}
        self._times: list[Ints] = []
        self._lines: list[Ints] = []
        self._held = 0

    def add(self, block: Block) -> None:
        """Convert a block; rows without a time are left out."""
        lines, entry = block.lines(), self._entry
        good = np.ones(len(lines), np.bool_)
        if entry.time is not None:
            column = block.table.column(entry.time)
            if entry.time_unit == "text":
                times, good = times_of_texts(encoded(column), entry, lines, self._faults)
            else:
                values = self._values(column, entry.time, lines, "")
                times, good = times_of_numbers(values, entry, lines, self._faults)
            self._times.append(times[good])
        for name, parts in self._numbers.items():
            parts.append(self._values(block.table.column(name), name, lines, self._quantity(name))[good])
        for name, codes in self._codes.items():
            codes.append(self._coded(name, encoded(block.table.column(name)))[good])
        self._lines.append(lines[good])
        self._held += len(lines) * (2 + len(self._numbers) + len(self._codes))
        if self._held > MOST_VALUES:
            raise DatasetError.at(
                self._path, f"more than {MOST_VALUES:,} values; expected a part of it", int(lines[-1])
            )

    def _quantity(self, name: str) -> str:
        mapped = self._entry.columns.get(name)
        if mapped is not None and not self._entry.is_long:
            return mapped.quantity
        return next((own.quantity for own in self._entry.columns.values() if own.quantity in LIMITS), "")

    def _values(self, column: Any, name: str, lines: Ints, quantity: str) -> Floats:
        if quantity not in LIMITS and (quick := _at_once(column, self._entry.decimal)) is not None:
            values = quick
        else:
            values = numbers_of(encoded(column), lines, name, self._entry, quantity, self._faults)
        return checked(values, lines, name, self._faults, quantity)

    def _coded(self, name: str, words: Words) -> Any:
        known = self._known[name]
        own = np.asarray([known.setdefault(text, len(known)) for text in words.names] + [-1], np.int32)
        if len(known) > MOST_WORDS:
            raise DatasetError.at(self._path, f"column {name!r}: more than {MOST_WORDS:,} words; expected a few")
        return own[words.codes]

    def whole(self) -> Raw:
        """All of it."""
        lines = _joined(self._lines, np.int64)
        words = {name: Words(_joined(parts, np.int32), tuple(self._known[name])) for name, parts in self._codes.items()}
        values = {name: _joined(parts, np.float64) for name, parts in self._numbers.items()}
        times = None if self._entry.time is None else _joined(self._times, np.int64)
        return Raw(len(lines), times, self._entry.time_unit == "text", words, values, lines)


def encoded(column: Any) -> Words:
    """A column of texts as words; empty texts are none."""
    array = column.chunk(0) if isinstance(column, pa.ChunkedArray) and column.num_chunks == 1 else column
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    coded = compute.utf8_trim_whitespace(array).dictionary_encode()
    names = coded.dictionary.to_pylist()
    codes = np.array(values_of(compute.fill_null(coded.indices, -1)), np.int32)
    empty = next((code for code, name in enumerate(names) if not name), None)
    if empty is not None:
        codes[codes == empty] = -1
    return Words(codes, tuple(name or "" for name in names))


def _at_once(column: Any, decimal: str) -> Floats | None:
    """Numbers (N,) of texts, NaN for none; None where any is no plain number."""
    if decimal != ".":
        return None
    trimmed = compute.utf8_trim_whitespace(column)
    nothing = compute.is_in(compute.utf8_lower(trimmed), value_set=pa.array(sorted(NOTHING)))
    try:
        plain = compute.if_else(nothing, None, trimmed).cast(pa.float64())
    except pa.ArrowInvalid:
        return None
    return np.array(values_of(compute.fill_null(plain, float("nan"))))


def _joined(parts: list[Any], kind: Any) -> Any:
    return np.concatenate(parts) if parts else np.empty(0, kind)
