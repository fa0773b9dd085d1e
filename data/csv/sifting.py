"""CSV text that Arrow refuses as a whole, line by line: the good rows, and what is wrong with the others.

Whether a line is good is told as Arrow's reader would tell it of that line alone, at about a microsecond a line: lines
without quotes are cut by Arrow, others one by one, and texts that are no numbers or not UTF-8 are told from the others
before anything is converted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from slicepilot.data.arrow import filtered, numbers, texts, values_of
from slicepilot.data.faults import EXAMPLES, FaultKind

from .layout import UTF8_MARK, BadRows, Ints, Layout, Rows, fields_of

compute: Any = pyarrow.compute  # its functions are made when it is loaded

Mask = npt.NDArray[np.bool_]

# What Arrow takes for a number besides "inf" and "nan". An integer of few digits (by bits of the type) has room for
# certain, one of more perhaps; a float that is too large becomes infinite.
_FLOAT = r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?"
_INTEGER = r"-?[0-9]{{1,{digits}}}|0[xX][0-9a-fA-F]{{1,{hex_digits}}}"
_FEW_DIGITS = {8: 2, 16: 4, 32: 9, 64: 18}
_LONG_INTEGER = r"-?[0-9]+"


def sift(layout: Layout, text: bytes | bytearray) -> Rows:
    """The good rows of whole lines, the last of which may lack its line end, and the bad ones by fault and column."""
    lines = _Lines(text, layout.delimiter)
    plain = lines.given & ~lines.odd & (lines.num_fields == len(layout.types))
    by_hand = np.flatnonzero(lines.given & lines.odd)
    cut = [fields_of(lines.line(number), layout.delimiter) for number in by_hand.tolist()]
    fits = np.asarray([len(fields) == len(layout.types) for fields in cut], np.bool_)
    fields = [own for own in cut if len(own) == len(layout.types)]
    order = np.concatenate([np.flatnonzero(plain), by_hand[fits]])
    places = np.argsort(order)
    order = order[places]
    columns = _plain_columns(layout, lines, plain)
    if fields:
        columns = [
            pa.concat_arrays([column, texts([own[index] for own in fields], pa.binary())]).take(numbers(places))
            for index, column in enumerate(columns)
        ]
    good, bad = np.ones(len(order), np.bool_), []
    other = lines.given.copy()
    other[order] = False
    if other.any():
        found = np.flatnonzero(other)
        bad.append(BadRows("columns", None, found, [lines.line(number) for number in found[:EXAMPLES].tolist()]))
    arrays: list[Any] = []
    for (name, kind), given in zip(layout.types.items(), columns, strict=True):
        array, wrong = _converted(given, kind, layout.nullable)
        arrays.append(array)
        fault: FaultKind = "number" if _is_number(kind) else "text"
        rows = np.flatnonzero(wrong & good)
        if len(rows):
            bad.append(BadRows(fault, name, order[rows], [given[row].as_py() for row in rows[:EXAMPLES].tolist()]))
        good &= ~wrong
    table = filtered(pa.Table.from_arrays(arrays, schema=layout.schema), good)
    return Rows(table, order[good], len(lines.starts), tuple(bad))


class _Lines:
    """Where the lines of a text are, and what they look like.

    Attributes:
        starts, stops: (N,) where each begins, and where it ends without its line end.
        given: (N,) there is something in it.
        odd: (N,) it has a quote or a carriage return, or begins as a byte order mark does.
        num_fields: (N,) one more than it has delimiters.
    """

    def __init__(self, text: bytes | bytearray, delimiter: str) -> None:
        self.data = np.frombuffer(text, np.uint8)
        ends = np.flatnonzero(self.data == ord("\n"))
        self.ends = ends if text.endswith(b"\n") else np.append(ends, len(text))
        self.starts = np.concatenate([[0], self.ends[:-1] + 1])
        full = self.ends > self.starts
        self.stops = self.ends - (full & (self.data[self.ends - 1] == ord("\r")))
        self.given = self.stops > self.starts
        begins = self.data[np.minimum(self.starts, len(text) - 1)]
        self.odd = (self._count('"') > 0) | (self._count("\r") > 0) | (begins == UTF8_MARK[0])
        self.num_fields = self._count(delimiter) + 1

    def line(self, number: int) -> bytes:
        """One line without its end."""
        return self.data[self.starts[number] : self.stops[number]].tobytes()

    def text_of(self, chosen: Mask) -> bytes:
        """The lines whose mask (N,) is True, with their ends."""
        lengths = np.minimum(self.ends + 1, len(self.data)) - self.starts
        return self.data[np.repeat(chosen, lengths)].tobytes()

    def _count(self, letter: str) -> Ints:
        """How many times an ASCII character is in each line (N,)."""
        places = np.flatnonzero(self.data == ord(letter))
        return np.searchsorted(places, self.stops) - np.searchsorted(places, self.starts)


def _plain_columns(layout: Layout, lines: _Lines, plain: Mask) -> list[Any]:
    """Each column of plain lines as binary texts; lines have the right number of fields."""
    if not plain.any():
        return [texts([], pa.binary()) for _ in layout.types]
    table = layout.read(lines.text_of(plain), dict.fromkeys(layout.types, pa.binary()), quoted=False)
    return [column.chunk(0) for column in table.columns]


def _is_number(kind: Any) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _converted(given: Any, kind: Any, nullable: bool) -> tuple[Any, Mask]:
    """A column of binary texts (N,) as its type, and where they are none: zero or no text stands there."""
    if _is_number(kind):
        return _as_numbers(given, kind, nullable)
    wrong = _no_text(given)
    text = _replaced(given, wrong, b"").cast(pa.string())
    return (text.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else text.cast(kind)), wrong


def _as_numbers(given: Any, kind: Any, nullable: bool) -> tuple[Any, Mask]:
    """As `_converted`, for integers and floats; empty texts are null where they may be."""
    whole, bits = pa.types.is_integer(kind), kind.bit_width
    pattern = _INTEGER.format(digits=_FEW_DIGITS[bits], hex_digits=bits // 4) if whole else _FLOAT
    wrong = ~_matches(given, pattern)
    if whole and wrong.any():
        long = np.flatnonzero(wrong & _matches(given, _LONG_INTEGER))
        wrong[long] = [not _has_room(given[row].as_py(), bits) for row in long.tolist()]
    empty = values_of(compute.binary_length(given)) == 0 if nullable else None
    column = _trimmed(_replaced(given, wrong if empty is None else wrong | empty, b"0")).cast(kind)
    if not whole:
        wrong |= ~np.isfinite(values_of(column))
    if empty is None:
        return column, wrong
    return numbers(values_of(column), valid=~empty), wrong & ~empty


def _matches(given: Any, pattern: str) -> Mask:
    """Which binary texts (N,) are of a pattern, padded or not."""
    return values_of(compute.match_substring_regex(given, f"^[ \t]*({pattern})[ \t]*$"))


def _trimmed(given: Any) -> Any:
    """Binary texts of ASCII without their padding."""
    return compute.ascii_trim(given.cast(pa.string()), " \t")


def _replaced(given: Any, where: Mask, by: bytes) -> Any:
    if not where.any():
        return given
    [scalar] = texts([by], pa.binary())  # not by `pyarrow.scalar`, which imports pandas
    return compute.if_else(numbers(where), scalar, given)


def _has_room(text: bytes, bits: int) -> bool:
    """Whether a signed integer of so many bits holds a decimal one."""
    digits = text.strip(b" \t-").lstrip(b"0")
    if len(digits) > bits:  # far more than there can be; Python refuses to read thousands
        return False
    number = int(digits or b"0") * (-1 if b"-" in text else 1)
    limit = 2 ** (bits - 1)
    return -limit <= number < limit


def _no_text(given: Any) -> Mask:
    """Which binary texts (N,) are not UTF-8."""
    _, offsets, data = given.buffers()
    wrong = np.zeros(len(given), np.bool_)
    if data is None or not len(given):
        return wrong
    ends = np.frombuffer(offsets, np.int32)[given.offset : given.offset + len(given) + 1]
    high = np.concatenate([[0], np.cumsum(np.frombuffer(data, np.uint8)[: ends[-1]] > 127)])
    for row in np.flatnonzero(high[ends[1:]] > high[ends[:-1]]).tolist():
        try:
            given[row].as_py().decode()
        except UnicodeDecodeError:
            wrong[row] = True
    return wrong
