"""One block of CSV text to typed columns; where some rows are bad, the good ones and what is wrong with the others.

Arrow takes a block as a whole or refuses it as a whole. What it refuses is cut into pieces, and of the pieces that it
refuses each line is judged by itself (`slicepilot.data.csv.sifting`). Both judge alike, so that what becomes of a row
does not depend on its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from ..arrow import values_of
from ..faults import FaultKind

SMALL = 256 << 10  # bytes of which each line may be looked at
PIECES = 8  # a refused block is cut into so many
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

    def parse(self, text: bytearray, unwanted: Callable[[], bool] = lambda: False) -> Rows:
        """Typed columns of whole lines; the last one may lack its line end. Other threads run meanwhile.

        Raises:
            CancelledError: nobody wants the rows any longer, as ``unwanted`` says; asked for every `SMALL` bytes or so
                of a block that takes long.
        """
        if unwanted():
            raise CancelledError
        rows = self._at_once(text)
        if rows is not None:
            return rows
        several = 0 <= text.find(b"\n") < len(text) - 1
        if len(text) > SMALL and several:
            return _joined([self.parse(piece, unwanted) for piece in _pieces(text)])
        # What it imports is of no use for files without faults.
        from .sifting import sift

        return sift(self, text)

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

    def _at_once(self, text: bytearray) -> Rows | None:
        """The rows if all are good and each is one line, else None."""
        quoted = b'"' in text
        lone_returns = b"\r" in text and text.count(b"\r") != text.count(b"\r\n")
        if lone_returns or text.startswith(UTF8_MARK):  # which Arrow would swallow
            return None
        try:
            table = self.read(text, self.types, quoted)
        except pa.ArrowInvalid:
            return None
        # A quoted row may reach over many lines, and empty lines are skipped where there is one column.
        skips = quoted or len(self.types) == 1
        if skips and table.num_rows != text.count(b"\n") + (not text.endswith(b"\n")):
            return None
        # Arrow forgives the last line a quote that is not closed.
        if quoted and not fields_of(_last_line(text), self.delimiter):
            return None
        finite = [np.isfinite(values_of(column)).all() for column in table.columns if pa.types.is_floating(column.type)]
        return Rows(table, None, table.num_rows) if all(finite) else None


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


def _last_line(text: bytearray) -> bytes:
    end = len(text) - text.endswith(b"\n")
    return bytes(text[text.rfind(b"\n", 0, end) + 1 : end]).removesuffix(b"\r")


def _pieces(text: bytearray) -> list[bytearray]:
    """About `PIECES` parts of a block of several lines, each of whole lines; at least two."""
    step, pieces, start = len(text) // PIECES, [], 0
    while start < len(text):
        end = text.find(b"\n", start + step) + 1 or len(text)
        if end - start == len(text):
            end = text.find(b"\n") + 1
        pieces.append(text[start:end])
        start = end
    return pieces


def _joined(parts: list[Rows]) -> Rows:
    """Parts of a block, one after the other."""
    lines: list[Ints] = []
    bad: list[BadRows] = []
    before = 0
    for part in parts:
        own = np.arange(part.table.num_rows) if part.lines is None else part.lines
        lines.append(own + before)
        bad.extend(replace(rows, lines=rows.lines + before) for rows in part.bad)
        before += part.num_lines
    table = pa.concat_tables([part.table for part in parts]).unify_dictionaries().combine_chunks()
    return Rows(table, np.concatenate(lines), before, tuple(bad))
