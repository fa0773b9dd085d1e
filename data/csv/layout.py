"""What a file's rows look like, and what comes of a block of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from slicepilot.data.faults import FaultKind

UTF8_MARK = b"\xef\xbb\xbf"

_CLOSING_QUOTE = re.compile(rb'(?:[^"]++|"")*+"')

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BadRows:
    """Rows that were left out for the same fault.

    Attributes:
        kind, column: as in `slicepilot.data.faults.Fault`.
        lines: (N,) theirs in the block, from 0, ascending.
        values: what stands in the first of them, `slicepilot.data.faults.EXAMPLES` or all.
    """

    kind: FaultKind
    column: str | None
    lines: Ints
    values: Sequence[bytes]

    def __len__(self) -> int:
        """Number of rows N."""
        return len(self.lines)


@dataclass(frozen=True)
class Rows:
    """What came of a block.

    Attributes:
        table: the good rows, one chunk a column.
        lines: (N,) their lines in the block, from 0; None where row N is line N.
        num_lines: lines of the block, empty ones included.
        bad: the rows that were left out.
    """

    table: Any
    lines: Ints | None
    num_lines: int
    bad: tuple[BadRows, ...] = ()


@dataclass(frozen=True)
class Layout:
    """What a file's rows look like.

    Attributes:
        types: Arrow type of each column, in the file's order: signed integers, floats, strings, dictionaries of
            strings.
        delimiter: one character, ASCII.
        nullable: an empty field of a number column is null, and no fault.
    """

    types: Mapping[str, Any]
    delimiter: str = ","
    nullable: bool = False

    @cached_property
    def schema(self) -> Any:
        """The schema of the tables."""
        return pa.schema(list(self.types.items()))

    def read(self, text: bytes | bytearray, types: Mapping[str, Any], quoted: bool) -> Any:
        """A table of one chunk a column; raises `pyarrow.ArrowInvalid` where anything does not fit.

        A quoted field may reach over several lines.
        """
        table = pacsv.read_csv(
            pa.BufferReader(pa.py_buffer(text)),
            pacsv.ReadOptions(use_threads=False, column_names=list(types), block_size=len(text) + 1),
            pacsv.ParseOptions(
                delimiter=self.delimiter, quote_char='"' if quoted else False, ignore_empty_lines=len(types) == 1
            ),
            pacsv.ConvertOptions(
                column_types=types, null_values=[""] if self.nullable else [], strings_can_be_null=False
            ),
        )
        return table.combine_chunks() if any(column.num_chunks != 1 for column in table.columns) else table


def fields_of(line: bytes, delimiter: str) -> list[bytes]:
    """The fields of one line; none where a quote is not closed or there is a carriage return.

    Quotes are what RFC 4180 says they are at the beginning of a field, and themselves elsewhere.
    """
    if b"\r" in line:
        return []
    end = delimiter.encode()
    if b'"' not in line:
        return line.split(end)
    found, at = [], 0
    while True:
        if line.startswith(b'"', at):
            close = _CLOSING_QUOTE.match(line, at + 1)
            if close is None:
                return []
            head, at = line[at + 1 : close.end() - 1].replace(b'""', b'"'), close.end()
        else:
            head = b""
        stop = line.find(end, at)
        found.append(head + line[at : stop if stop >= 0 else len(line)])
        if stop < 0:
            return found
        at = stop + 1
