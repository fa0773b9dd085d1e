"""CSV files of any size as blocks of typed columns, in order, in bounded memory.

A file is cut at line ends, and Arrow parses each block as a whole. In a block that it refuses each line is split alone,
and each column converted by Arrow's rules, so that what becomes of a row does not depend on its neighbours. Types are
given and never guessed.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from slicepilot.configs.text import few, has_controls
from slicepilot.data.arrow import filtered, numbers, texts, values_of
from slicepilot.data.faults import DatasetError, FaultKind, Faults, shown

from .chunks import BROKEN, UTF16, OnProgress, opened, other_kind_of, utf16_of, what_is_broken

# Arrow would take SIGINT and SIGTERM for itself while it reads, and lose those that come near the end of a read.
pa.enable_signal_handlers(False)

BLOCK_BYTES = 1 << 20
HEADER_BYTES = 64 << 10  # read to find the header
MOST_SORTED_BYTES = 1 << 29
DESCENDING = 10  # excess of backward over forward steps in the first block from which the newest row counts as first
HOPELESS = 10_000  # rows none of which fits: a file of another kind
UTF8_MARK = b"\xef\xbb\xbf"
PLAIN = bytes(range(0x20, 0x7F)) + b"\r\n"  # no control characters, in ASCII
MOST_DIGITS = 20  # of a whole number of 64 bits
OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs"}
# Numbers as Arrow reads them, besides "inf" and "nan".
_FLOAT = re.compile(rb"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_UNNAMED = re.compile(r"Unnamed: \d+(_level_\d+)?")
_HEXADECIMAL = re.compile(rb"0[xX]([0-9a-fA-F]{1,16})")


@dataclass(frozen=True)
class Block:
    """Rows that follow each other in a file.

    Attributes:
        table: typed columns in the file's order, a single chunk each.
        first_line: line of the file, from 1, where the block's text begins.
    """

    table: Any
    first_line: int
    _lines: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self.table.num_rows

    def lines(self) -> npt.NDArray[np.int64]:
        """Line of the file, from 1, of each row (N,)."""
        own = np.arange(len(self), dtype=np.int64) if self._lines is None else self._lines
        return own + self.first_line

    def where(self, keep: npt.NDArray[np.bool_]) -> Block:
        """The rows whose mask (N,) is True."""
        if keep.all():
            return self
        own = self.lines() - self.first_line
        return replace(self, table=filtered(self.table, keep), _lines=own[keep])


class _Bad(NamedTuple):
    """A row that does not fit: its line in the block, from 0, and what is wrong with it."""

    line: int
    kind: FaultKind
    column: str | None
    value: bytes


class _Rows(NamedTuple):
    """The good rows of a block, their lines in it (None: row N is line N), all lines, and the bad rows."""

    table: Any
    lines: npt.NDArray[np.int64] | None
    num_lines: int
    bad: list[_Bad]


def read_blocks(
    path: str | Path,
    columns: Mapping[str, Any],
    faults: Faults,
    *,
    optional: Collection[str] = (),
    others: Any = None,
    nullable: bool = False,
    delimiter: str = ",",
    skip: int = 0,
    block_bytes: int = BLOCK_BYTES,
    on_progress: OnProgress | None = None,
) -> Iterator[Block]:
    """Blocks of a CSV file (RFC 4180 without line breaks inside of fields; UTF-8; compressed or not) with a header.

    Lines may end with CR LF, LF or, in all of the file, CR. Whole numbers may be written as ``823.0`` or ``8.23e2``. A
    column without a name, which pandas writes for an index, is left out, with a note.

    Rows that do not fit are left out and noted in ``faults``: ``columns`` (too many or too few fields), ``number``,
    ``text`` (not UTF-8), ``control`` (text with control characters); ``truncated`` if it is the last row and has no
    line end. A last row without line end that fits is kept and noted as ``truncated``: its last field may not be whole.
    Empty lines are no rows.

    Args:
        path: of the file; its first bytes show whether it is compressed.
        columns: Arrow type of each column by its name in the header: signed integers, floats (finite numbers only),
            strings, dictionaries of strings.
        optional: names that the header may lack.
        others: type of columns that are not named; None: there must not be any.
        nullable: an empty field of a number column is null, and no fault.
        skip: lines before the header, such as comments.
        block_bytes: text parsed at once; longer lines are refused.

    Raises:
        DatasetError: there is no such file, it is empty or no text, its columns are not these, a line has no end, it
            has no rows or none that fits; the compressed data are damaged or end early (after the rows before that).
    """
    path = Path(path)
    with opened(path) as (raw, stream):
        size = max(path.stat().st_size, 1)
        source = _Source(path, stream, block_bytes)
        names = source.header(delimiter, skip)
        unnamed = _unnamed(path, names)
        types = _types(path, names, columns, optional, others, unnamed)
        if unnamed is not None:
            faults.note(f"column {names.index(unnamed) + 1} has no name, as an index of pandas: left out")
        first_line, good, bad = 2 + skip, 0, 0
        for text in source.blocks():
            rows = _at_once(text, types, delimiter, nullable)
            if rows is None:
                rows = _line_by_line(text, types, delimiter, nullable)
            cut_off = None if text.endswith(b"\n") else rows.num_lines - 1
            for fault in rows.bad:
                kind = "truncated" if fault.line == cut_off else fault.kind
                faults.add(kind, first_line + fault.line, fault.column, fault.value)
            table = rows.table if unnamed is None else rows.table.drop_columns([unnamed])
            block = Block(table, first_line, rows.lines)
            if cut_off is not None and len(block) and block.lines()[-1] == first_line + cut_off:
                last = text[text.rfind(b"\n") + 1 :]
                faults.add("truncated", first_line + cut_off, None, last, left_out=False)
            first_line += rows.num_lines
            good, bad = good + len(block), bad + len(rows.bad)
            if on_progress is not None:
                on_progress(min(raw.tell() / size, 1.0))
            if len(block):
                yield block
            if not good and bad >= HOPELESS:
                break
        else:
            if source.broken is not None:
                if source.rest:
                    faults.add("truncated", first_line, None, source.rest)
                raise DatasetError.at(path, f"{source.broken}; expected a whole file", first_line)
            if not good and not bad:
                raise DatasetError.at(path, "no rows after the header; expected at least one")
        if not good:
            first = faults.examples()[0]
            raise DatasetError.at(path, f"none of {bad} rows fits its columns, the first in {first}")


def oldest_first(
    path: Path, blocks: Iterator[Block], times_of: Callable[[Block], npt.NDArray[np.int64]], faults: Faults
) -> Iterator[Block]:
    """All rows of a file in order of their times (N,) where it has the newest first, which is noted; else as they come.

    Raises:
        DatasetError: the newest row comes first in a file of more than `MOST_SORTED_BYTES`, which is kept in memory.
    """
    first = next(blocks, None)
    if first is None:
        return
    steps = np.sign(np.diff(times_of(first)))
    if np.count_nonzero(steps < 0) <= DESCENDING * np.count_nonzero(steps > 0):
        yield first
        yield from blocks
        return
    if path.stat().st_size > MOST_SORTED_BYTES:
        problem = (
            f"the newest row is first in {1e-9 * path.stat().st_size:.1f} GB; expected the oldest first, as by tac"
        )
        raise DatasetError.at(path, problem)
    faults.note("rows come newest first: sorted by time")
    for block in reversed([first, *blocks]):
        backwards = np.arange(len(block), dtype=np.int64)[::-1]
        lines = (block.lines() - block.first_line)[::-1]
        yield Block(block.table.take(numbers(backwards)).combine_chunks(), block.first_line, lines)


class _Source:
    """Blocks of whole lines of a stream.

    Attributes:
        broken: what is wrong with the compressed data, if anything is.
        rest: text after the last whole line.
    """

    def __init__(self, path: Path, stream: io.BufferedIOBase, block_bytes: int) -> None:
        self.broken: str | None = None
        self.rest = b""
        self._returns = False  # lines end with a carriage return alone
        self._path, self._stream, self._block_bytes = path, stream, block_bytes

    def header(self, delimiter: str, skip: int = 0) -> list[str]:
        """Names of the columns, from the first line after those that are skipped."""
        text = self._read(min(self._block_bytes, HEADER_BYTES))
        if not text and not self.broken:
            raise DatasetError.at(self._path, "is empty; expected a CSV file whose first line names its columns")
        if utf16_of(text) is not None:
            raise DatasetError.at(self._path, UTF16)
        if kind := other_kind_of(text):
            raise DatasetError.at(self._path, f"is {kind}; expected CSV in UTF-8")
        self._returns = b"\n" not in text and b"\r" in text
        text = (text.replace(b"\r", b"\n") if self._returns else text).removeprefix(UTF8_MARK)
        for _ in range(skip):
            text = text.partition(b"\n")[2]
        line, end, self.rest = text.partition(b"\n")
        if not end and (self.broken or len(text) >= self._block_bytes):
            problem = self.broken or f"no line end in {len(text)} bytes"
            raise DatasetError.at(self._path, f"{problem}; expected a whole CSV file", 1)
        try:
            names = line.decode().strip("\r")
        except UnicodeDecodeError:
            names = "\0"
        if not names.strip():
            raise DatasetError.at(self._path, "no header; expected a CSV file whose first line names its columns", 1)
        if not names.replace("\t", "").isprintable():
            what = "is no text" if "\0" in names else f"names of columns have control characters: {shown(names)}"
            raise DatasetError.at(self._path, f"{what}; expected CSV in UTF-8", 1)
        return [name.strip() for name in next(csv.reader([names], delimiter=delimiter))]

    def blocks(self) -> Iterator[bytes]:
        """The text after the header; raises DatasetError for a line that is longer than a block."""
        while True:
            text = self.rest + self._read(self._block_bytes)
            whole = len(text) - len(self.rest) < self._block_bytes  # the stream has no more
            end = len(text) if whole and not self.broken else text.rfind(b"\n") + 1
            if not whole and not end:
                raise DatasetError.at(self._path, f"no line end in {len(text)} bytes; expected a CSV file")
            self.rest = text[end:]
            if end:
                yield text[:end]
            if whole:
                return

    def _read(self, num_bytes: int) -> bytes:
        """So many bytes, or as many as the stream has."""
        parts, missing = [], num_bytes
        try:
            while missing and not self.broken and (part := self._stream.read1(missing)):
                parts.append(part)
                missing -= len(part)
        except (*BROKEN, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise DatasetError.at(self._path, f"{error.strerror}; expected a file that can be read") from None
            self.broken = what_is_broken(error)
        text = b"".join(parts)
        return text.replace(b"\r", b"\n") if self._returns else text


def _unnamed(path: Path, names: list[str]) -> str | None:
    """The column without a name, which pandas calls "Unnamed: 0" when it has read it; raises DatasetError for two."""
    unnamed = [(number, name) for number, name in enumerate(names, 1) if not name or _UNNAMED.fullmatch(name)]
    if len(unnamed) > 1:
        numbers = few([str(number) for number, _ in unnamed])
        raise DatasetError.at(path, f"columns {numbers} have no names; expected at most one without", 1)
    return unnamed[0][1] if unnamed and len(names) > 1 else None


def _types(
    path: Path,
    names: list[str],
    columns: Mapping[str, Any],
    optional: Collection[str],
    others: Any,
    unnamed: str | None,
) -> dict[str, Any]:
    """Arrow type of each column of a header; raises DatasetError where it is not as expected."""
    missing = [name for name in columns if name not in names and name not in optional]
    for delimiter, word in OTHER_DELIMITERS.items() if len(names) == 1 else ():
        if missing and set(missing) <= {name.strip().strip('"') for name in names[0].split(delimiter)}:
            raise DatasetError.at(path, f"fields are separated by {word}; expected commas", 1)
    unknown = [name for name in names if name not in columns and name != unnamed] if others is None else []
    twice = sorted({name for name in names if names.count(name) > 1})
    wrong = [
        f"{what} {few(list(map(shown, some)))}"
        for what, some in (("missing", missing), ("unknown", unknown), ("twice", twice))
        if some
    ]
    if wrong:
        more = "" if others is None else " and others"
        raise DatasetError.at(path, f"columns: {'; '.join(wrong)}; expected {', '.join(columns)}{more}", 1)
    return {name: pa.string() if name == unnamed else columns.get(name, others) for name in names}


def _at_once(text: bytes, types: Mapping[str, Any], delimiter: str, nullable: bool) -> _Rows | None:
    """The rows if all are good and each is one line, else None."""
    quoted = b'"' in text
    lone_returns = b"\r" in text and text.count(b"\r") != text.count(b"\r\n")
    if lone_returns or text.startswith(UTF8_MARK):  # which Arrow would swallow
        return None
    try:
        table = arrow_table(text, types, delimiter, nullable)
    except pa.ArrowInvalid:
        return None
    if text.translate(None, PLAIN) and _has_controls(table):
        return None
    # A quoted row may reach over many lines, and empty lines are skipped where there is one column.
    skips = quoted or len(types) == 1
    if skips and table.num_rows != text.count(b"\n") + (not text.endswith(b"\n")):
        return None
    # Arrow forgives the last line a quote that is not closed.
    if quoted and not _fields(text.removesuffix(b"\n").rpartition(b"\n")[2].removesuffix(b"\r"), delimiter):
        return None
    finite = [np.isfinite(values_of(column)).all() for column in table.columns if pa.types.is_floating(column.type)]
    return _Rows(table, None, table.num_rows, []) if all(finite) else None


def arrow_table(text: bytes, types: Mapping[str, Any], delimiter: str, nullable: bool) -> Any:
    """A table with a single chunk per column; raises `pyarrow.ArrowInvalid` where anything does not fit."""
    table = pacsv.read_csv(
        pa.BufferReader(text),
        pacsv.ReadOptions(use_threads=False, column_names=list(types), block_size=len(text) + 1),
        pacsv.ParseOptions(
            delimiter=delimiter, quote_char='"' if b'"' in text else False, ignore_empty_lines=len(types) == 1
        ),
        pacsv.ConvertOptions(column_types=types, null_values=[""] if nullable else [], strings_can_be_null=False),
    )
    return table.combine_chunks() if any(column.num_chunks != 1 for column in table.columns) else table


def _has_controls(table: Any) -> bool:
    """Whether any text of a table has control characters."""
    for column in table.columns:
        if not _is_number(column.type):
            array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            texts_of = array.dictionary if pa.types.is_dictionary(column.type) else array.unique()
            if any(map(has_controls, texts_of.to_pylist())):
                return True
    return False


def _line_by_line(text: bytes, types: Mapping[str, Any], delimiter: str, nullable: bool) -> _Rows:
    """The good rows, and the first thing that is wrong with each of the others."""
    rows, line_numbers, bad = [], [], []
    lines = text.removesuffix(b"\n").split(b"\n")
    for number, ended in enumerate(lines):
        line = ended.removesuffix(b"\r")
        fields = _fields(line, delimiter)
        if line and len(fields) == len(types):
            rows.append(fields)
            line_numbers.append(number)
        elif line:
            bad.append(_Bad(number, "columns", None, line))
    good, arrays = np.ones(len(rows), np.bool_), []
    for position, (name, kind) in enumerate(types.items()):
        parse: Callable[[bytes], Any] = _real if pa.types.is_floating(kind) else _text
        parse = partial(_whole, kind.bit_width) if pa.types.is_integer(kind) else parse
        empty = b"" if nullable and parse is not _text else None
        values: list[Any] = []
        for row, fields in enumerate(rows):
            field = fields[position]
            try:
                values.append(None if field == empty else parse(field))
            except (ValueError, ArithmeticError) as error:
                kind_of_text: FaultKind = "text" if isinstance(error, UnicodeDecodeError) else "control"
                if good[row]:
                    bad.append(_Bad(line_numbers[row], kind_of_text if parse is _text else "number", name, field))
                good[row] = False
                values.append(None)
        arrays.append(_array(values, kind))
    table = pa.Table.from_arrays(arrays, schema=pa.schema(list(types.items())))
    return _Rows(filtered(table, good), np.asarray(line_numbers, np.int64)[good], len(lines), bad)


def _fields(line: bytes, delimiter: str) -> list[bytes]:
    """The fields of a line; none where a quote is not closed or there is a carriage return."""
    if b"\r" in line:
        return []
    if b'"' not in line:
        return line.split(delimiter.encode())
    reader = csv.reader([line.decode("utf-8", "surrogateescape"), ""], delimiter=delimiter)
    try:
        fields = next(reader)
    except csv.Error:  # longer than the module takes
        return []
    return [field.encode("utf-8", "surrogateescape") for field in fields] if reader.line_num == 1 else []


def _text(field: bytes) -> str:
    """Raises ValueError for a text that is not UTF-8, or has control characters."""
    text = field.decode()
    if field.translate(None, PLAIN) and has_controls(text):
        raise ValueError("control characters")
    return text


def _real(field: bytes) -> float:
    """A finite number as Arrow reads it; raises ValueError for others."""
    stripped = field.strip(b" \t")
    value = float(stripped) if _FLOAT.fullmatch(stripped) else math.inf
    if math.isinf(value):
        raise ValueError("no finite number")
    return value


def _whole(bits: int, field: bytes) -> int:
    """A whole number as Arrow reads it, also with decimals or an exponent; raises ValueError or ArithmeticError."""
    stripped = field.strip(b" \t")
    if stripped.isdigit() and len(stripped) <= MOST_DIGITS:
        number = int(stripped)
    elif match := _HEXADECIMAL.fullmatch(stripped):  # the bits of the number
        if len(match[1]) > bits // 4:
            raise ValueError("too long")
        number = int(match[1], 16)
        number -= number >> (bits - 1) << bits
    elif _FLOAT.fullmatch(stripped):
        exact = Decimal(stripped.decode())
        # Without the check of the size 1e999999999 would become as many digits.
        if exact.adjusted() > MOST_DIGITS or exact != int(exact):
            raise ValueError("not whole, or too large")
        number = int(exact)
    else:
        raise ValueError("no number")
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise ValueError("too large")
    return number


def _array(values: list[Any], kind: Any) -> Any:
    """An Arrow array (N,) of values, None for null or for rows that are left out."""
    if not _is_number(kind):
        column = texts([value or "" for value in values])
        return column.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else column.cast(kind)
    there = np.asarray([value is not None for value in values], np.bool_)
    plain = [0 if value is None else value for value in values]
    name = "float" if pa.types.is_floating(kind) else "int"
    return numbers(np.asarray(plain, f"{name}{kind.bit_width}"), valid=None if there.all() else there)


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
