"""One block of CSV text to typed columns; where some rows are bad, the good ones and what is wrong with the others.

A plain block is parsed by a compiled loop, any other by Arrow, which takes it as a whole or refuses it as a whole. What
it refuses is cut into pieces until those that it refuses are small, and in these each line is looked at by itself. All
judge alike, so that what becomes of a row does not depend on its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from ..arrow import filtered, values_of
from ..arrow import numbers as numbers_of
from ..arrow import texts as texts_of
from ..faults import FaultKind
from .kernel import Plain, read_plain

SMALL = 64 << 10  # bytes that may be looked at line by line
PIECES = 8  # a refused block is cut into so many
# What is no finite number for certain does not match. What matches may still be out of range, or of another type.
_NUMBER = re.compile(rb"[-+]?(0[xX][0-9a-fA-F]+|[0-9]*\.?[0-9]*([eE][-+]?[0-9]+)?)")


class BadRow(NamedTuple):
    """A row that was left out: its line in the block from 0, and as in `slicepilot.data.faults.Fault`."""

    line: int
    kind: FaultKind
    column: str | None
    value: Any


@dataclass(frozen=True)
class Rows:
    """What came of a block.

    Attributes:
        table: the good rows, one chunk a column.
        lines: (N,) their lines in the block, from 0; None where row N is line N.
        num_lines: lines of the block, empty ones included.
        bad: the rows that were left out, by line.
    """

    table: Any
    lines: npt.NDArray[np.int64] | None
    num_lines: int
    bad: tuple[BadRow, ...] = ()


@dataclass(frozen=True)
class Layout:
    """What a file's rows look like.

    Attributes:
        types: Arrow type of each column, in the file's order: integers, floats, strings, dictionaries of strings.
        delimiter: one character.
        nullable: an empty field of a number column is null, and no fault.
    """

    types: Mapping[str, Any]
    delimiter: str = ","
    nullable: bool = False

    @cached_property
    def schema(self) -> Any:
        """The schema of the tables."""
        return pa.schema(list(self.types.items()))

    def parse(self, text: bytearray) -> Rows:
        """Typed columns of whole lines; the last one may lack its line end. Other threads run meanwhile."""
        plain = read_plain(text, self.schema, self.delimiter)
        rows = self._at_once(text) if plain is None else self._with_odd(text, plain)
        if rows is not None:
            return rows
        several = 0 <= text.find(b"\n") < len(text) - 1
        if len(text) > SMALL and several:
            return _joined([self.parse(piece) for piece in _pieces(text)])
        return self._line_by_line(bytes(text).split(b"\n"))

    def _with_odd(self, text: bytearray, plain: Plain) -> Rows:
        """Plain rows, and what comes of the other lines between them."""
        if not len(plain.odd):
            return Rows(plain.table, None, plain.table.num_rows)
        numbers = plain.odd[:, 0]
        others = self._line_by_line([bytes(text[start:end]) for _, start, end in plain.odd])
        num_lines = plain.table.num_rows + len(numbers)
        lines, table = np.delete(np.arange(num_lines), numbers), plain.table
        if others.lines is not None and len(others.lines):
            lines = np.concatenate([lines, numbers[others.lines]])
            order = np.argsort(lines)
            table = pa.concat_tables([table, others.table]).unify_dictionaries().combine_chunks()
            lines, table = lines[order], table.take(numbers_of(order)).combine_chunks()
        return Rows(table, lines, num_lines, tuple(row._replace(line=int(numbers[row.line])) for row in others.bad))

    def _at_once(self, text: bytearray) -> Rows | None:
        """The rows if all are good and each is one line, else None."""
        quoted = b'"' in text
        lone_returns = b"\r" in text and text.count(b"\r") != text.count(b"\r\n")
        try:
            table = None if lone_returns else self._read(text, self.types, quoted)
        except pa.ArrowInvalid:
            return None
        # A quoted row may reach over many lines, and empty lines are skipped where there is one column.
        skips = quoted or len(self.types) == 1
        if table is None or (skips and table.num_rows != _num_lines(text)):
            return None
        finite = [np.isfinite(values_of(column)).all() for column in table.columns if pa.types.is_floating(column.type)]
        return Rows(table, None, table.num_rows) if all(finite) else None

    def _read(self, text: bytearray, types: Mapping[str, Any], quoted: bool) -> Any:
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

    def _line_by_line(self, lines: list[bytes]) -> Rows:
        """The good rows of some lines, the last of which may be what follows the last line end: nothing."""
        bad: dict[int, BadRow] = {}
        rows, numbers = [], []
        for number, whole in enumerate(lines):
            line = whole.removesuffix(b"\r")
            fields = self._fields(line)
            if fields is not None:
                rows.append(fields)
                numbers.append(number)
            elif line:
                bad[number] = BadRow(number, "columns", None, line)
        columns: list[Any] = []
        for index, (name, kind) in enumerate(self.types.items()):
            texts = [row[index] for row in rows]
            column, wrong = self._column(texts, kind)
            columns.append(column)
            fault: FaultKind = "number" if _is_number(kind) else "text"
            for row in np.flatnonzero(wrong).tolist():
                bad.setdefault(numbers[row], BadRow(numbers[row], fault, name, texts[row]))
        good = np.asarray([number not in bad for number in numbers], np.bool_)
        table = filtered(pa.Table.from_arrays(columns, schema=self.schema), good)
        num_lines = len(lines) - (not lines[-1])
        return Rows(table, np.asarray(numbers, np.int64)[good], num_lines, tuple(bad[n] for n in sorted(bad)))

    def _fields(self, line: bytes) -> list[bytes] | None:
        """The fields of one line; None where they are too many or too few, or a quote is not closed."""
        if not line or b"\r" in line:
            return None
        fields = line.split(self.delimiter.encode())
        if b'"' in line:
            try:
                row = self._read(bytearray(line), dict.fromkeys(self.types, pa.binary()), quoted=True)
            except pa.ArrowInvalid:
                return None
            fields = [column[0].as_py() for column in row.columns] if row.num_rows == 1 else []
        return fields if len(fields) == len(self.types) else None

    def _column(self, texts: list[bytes], kind: Any) -> tuple[Any, npt.NDArray[np.bool_]]:
        """A column of texts as its type, and where they are none: null or zero stands there."""
        given = texts_of(texts, pa.binary())
        wrong = np.zeros(len(texts), np.bool_)
        if not _is_number(kind):
            _mark(given, pa.string(), wrong)
            text = _replaced(given, wrong, b"").cast(pa.string())
            return (text.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else text.cast(kind)), wrong
        empty = np.asarray([not text for text in texts], np.bool_)
        trimmed = [text.strip(b" \t") for text in texts]
        wrong |= np.asarray([not _NUMBER.fullmatch(text) for text in trimmed], np.bool_)
        right = np.flatnonzero(~wrong)
        doubtful = np.zeros(len(right), np.bool_)
        _mark(texts_of([trimmed[row] for row in right], pa.binary()), kind, doubtful)
        wrong[right] = doubtful
        given = texts_of(trimmed, pa.binary())
        if self.nullable:
            wrong &= ~empty
        column = _cast(_replaced(given, wrong | empty, b"0"), kind)
        if pa.types.is_floating(kind):
            wrong |= ~np.isfinite(values_of(column))
        return (_with_nulls(column, empty) if self.nullable else column), wrong


def _is_number(kind: Any) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _num_lines(text: bytearray) -> int:
    return text.count(b"\n") + (not text.endswith(b"\n"))


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
    lines: list[npt.NDArray[np.int64]] = []
    bad: list[BadRow] = []
    before = 0
    for part in parts:
        own = np.arange(part.table.num_rows) if part.lines is None else part.lines
        lines.append(own + before)
        bad.extend(row._replace(line=row.line + before) for row in part.bad)
        before += part.num_lines
    table = pa.concat_tables([part.table for part in parts]).unify_dictionaries().combine_chunks()
    return Rows(table, np.concatenate(lines), before, tuple(bad))


def _cast(texts: Any, kind: Any) -> Any:
    return texts.cast(pa.string()).cast(kind)


def _mark(texts: Any, kind: Any, wrong: npt.NDArray[np.bool_]) -> None:
    """Set ``wrong`` (N,) where a text is none of a kind, by halves."""
    try:
        _cast(texts, kind)
    except pa.ArrowInvalid:
        half = len(texts) // 2
        if not half:
            wrong[:] = True
            return
        _mark(texts[:half], kind, wrong[:half])
        _mark(texts[half:], kind, wrong[half:])


def _replaced(texts: Any, where: npt.NDArray[np.bool_], by: bytes) -> Any:
    if not where.any():
        return texts
    return texts_of([by if cut else text for text, cut in zip(texts.to_pylist(), where, strict=True)], pa.binary())


def _with_nulls(column: Any, empty: npt.NDArray[np.bool_]) -> Any:
    valid = pa.py_buffer(np.packbits(~empty, bitorder="little"))
    return pa.Array.from_buffers(column.type, len(column), [valid, column.buffers()[1]], offset=column.offset)
