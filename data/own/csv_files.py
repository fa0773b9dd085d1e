"""CSV of any tool: delimiter, decimal sign and the position of the header are detected."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pyarrow as pa

from slicepilot.data.csv.blocks import read_blocks
from slicepilot.data.csv.chunks import other_kind_of, read_start, utf16_of
from slicepilot.data.faults import DatasetError, Faults

from .columns import columns_of, put_together, wanted_columns
from .map import Decimal, Delimiter, FileMap
from .rows import MOST_COLUMNS, MOST_VALUES, Raw, number_of

DELIMITERS: tuple[Delimiter, ...] = get_args(Delimiter)
START_BYTES = 1 << 18
_COMMA_NUMBER = re.compile(r"[-+]?\d+,\d+")
_POINT_NUMBER = re.compile(r"[-+]?\d+\.\d+")


@dataclass(frozen=True)
class Layout:
    """How a file is written.

    Attributes:
        names: of the columns; skip: lines before the header.
        delimiter, decimal: as in `slicepilot.data.own.map.FileMap`.
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
    likely: Delimiter = max(DELIMITERS, key=lambda mark: len(_split(header, mark)))
    chosen = delimiter or likely
    names = tuple(name.strip() for name in _split(header, chosen))
    if len(names) > MOST_COLUMNS:
        raise DatasetError.at(path, f"{len(names):,} columns; expected at most {MOST_COLUMNS:,}", skip + 1)
    if rest and all(number_of(name) is not None for name in names if name):
        raise DatasetError.at(path, "the first line has no names; expected a header with a name for each column", 1)
    fields = [field.strip() for line in rest for field in _split(line, chosen)]
    # "0,1" may be a list of CPUs: no number with a decimal point stands beside decimal commas.
    commas = chosen != "," and any(map(_COMMA_NUMBER.fullmatch, fields))
    commas = commas and not any(map(_POINT_NUMBER.fullmatch, fields))
    return Layout(names, chosen, "," if commas else ".", skip)


def _before_header(line: str, following: str) -> bool:
    """Whether a line is a comment, or Excel's hint at the delimiter, and not a header after a number sign."""
    if not line.strip() or line.lower().startswith("sep="):
        return True
    if not line.startswith("#"):
        return False
    if following.startswith("#"):
        return True
    mark = max(DELIMITERS, key=lambda mark: len(_split(line, mark)))
    first = following.split(mark, maxsplit=1)[0].strip().strip('"')
    return not (len(_split(line, mark)) == len(_split(following, mark)) > 1 and first[:1].isdigit())


def _split(line: str, delimiter: str) -> list[str]:
    """The fields of a line; none if the line is longer than the csv module accepts."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def read_csv(path: Path, entry: FileMap, faults: Faults) -> Raw:
    """The columns that a map names.

    Raises:
        DatasetError: as `layout_of`, `slicepilot.data.csv.blocks.read_blocks` and `columns_of`; too many values.
    """
    layout = layout_of(path, entry.delimiter)
    wanted = wanted_columns(path, entry, layout.names)
    parts: list[Raw] = []
    held = 0
    for block in read_blocks(path, {}, faults, others=pa.string(), delimiter=layout.delimiter, skip=layout.skip):
        parts.append(columns_of(path, block.table, block.lines(), entry, faults))
        held += len(block) * (1 + len(wanted))
        if held > MOST_VALUES:
            last = int(block.lines()[-1])
            raise DatasetError.at(path, f"more than {MOST_VALUES:,} values; expected a part of it", last)
    return put_together(path, parts)
