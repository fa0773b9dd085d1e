"""Plain CSV text to columns in one compiled loop: the common case, in a quarter of the time of Arrow's parser.

Plain are rows with the right number of fields, none of them empty, quoted or padded: integers of at most 18 digits;
decimals of at most 15 digits, with a digit on either side of the point if there is one; ASCII words, few different ones
in a column. For those the outcome is, bit for bit, what Arrow makes of them. All other lines are left to Arrow.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from .arrow import numbers, words

INTEGER, SHORT_INTEGER, DECIMAL, WORD, OTHER = range(5)
TOO_MANY = -1
MAX_WORDS = 256  # different ones in a column of a block
SLOTS = 1024  # in which words are looked up: a power of two, some times as many
MAX_ODD = 1024  # lines of a block that are not plain

_MAX_INT32 = (1 << 31) - 1
_POWERS = 10.0 ** np.arange(16)
_NEWLINE, _RETURN, _QUOTE, _POINT, _MINUS, _ASCII = 10, 13, 34, 46, 45, 127
_ZERO = np.uint8(48)
_KINDS = {
    pa.int64(): INTEGER,
    pa.int32(): SHORT_INTEGER,
    pa.float64(): DECIMAL,
    pa.dictionary(pa.int32(), pa.string()): WORD,
}


class Plain(NamedTuple):
    """The plain rows of a block as a table of one chunk; number, beginning and end of each other line (M, 3)."""

    table: Any
    odd: npt.NDArray[np.int64]


def read_plain(text: bytearray, schema: Any, delimiter: str) -> Plain | None:
    """The plain rows of a block of whole lines; None where columns are of other types or much is not plain."""
    kinds = np.asarray([_KINDS.get(column.type, OTHER) for column in schema], np.int64)
    if len(kinds) < 2 or OTHER in kinds or not text.endswith(b"\n") or not delimiter.isascii():
        return None
    # A field and what separates it from the next are two bytes at least.
    integers = _workspace(len(kinds), len(text) // (2 * len(kinds)) + 1)
    places, num_words = np.empty((len(kinds), MAX_WORDS, 2), np.int64), np.zeros(len(kinds), np.int64)
    odd = np.empty((MAX_ODD, 3), np.int64)
    rows, num_odd = parse_plain(
        np.frombuffer(text, np.uint8),
        ord(delimiter),
        kinds,
        integers,
        integers.view(np.float64),
        places,
        num_words,
        odd,
    )
    if rows == TOO_MANY:
        return None
    columns: list[Any] = []
    for index, kind in enumerate(kinds):
        column = integers[index, :rows]
        if kind == WORD:
            found = [bytes(text[start:end]) for start, end in places[index, : num_words[index]]]
            columns.append(words(column.astype(np.int32), found))
        else:
            own = column.view(np.float64) if kind == DECIMAL else column
            columns.append(numbers(own.astype(np.int32 if kind == SHORT_INTEGER else own.dtype)))
    return Plain(pa.Table.from_arrays(columns, schema=schema), odd[:num_odd])


_own = threading.local()


def _workspace(columns: int, rows: int) -> npt.NDArray[np.int64]:
    """Memory of this thread (columns, rows) for one block after the other; pages that no row reaches cost nothing.

    Memory that is new for each block costs more than what becomes of a column being copied out of here: the kernel
    clears it page by page.
    """
    held: npt.NDArray[np.int64] | None = getattr(_own, "held", None)
    if held is None or held.shape[0] != columns or held.shape[1] < rows:
        held = _own.held = np.empty((columns, rows), np.int64)
    return held


@njit(cache=True, nogil=True, error_model="numpy")
def parse_plain(
    text: np.ndarray,
    delimiter: int,
    kinds: np.ndarray,
    integers: np.ndarray,
    decimals: np.ndarray,
    places: np.ndarray,
    num_words: np.ndarray,
    odd: np.ndarray,
) -> tuple[int, int]:
    """Parse a block.

    Args:
        text: uint8 (B,), whole lines; the last byte is a line feed, at which every loop over a field stops.
        delimiter: a byte.
        kinds: int64 (C,), of the columns.
        integers: int64 (C, N), filled with integers and numbers of words; N is at least B / (2 C).
        decimals: the same memory as float64, filled with decimals.
        places: int64 (C, MAX_WORDS, 2), filled with where in the text each different word begins and ends.
        num_words: int64 (C,), filled with how many there are.
        odd: int64 (MAX_ODD, 3), filled with the lines that are not plain: number, beginning, and end.

    Returns:
        The number of rows, and of odd lines; `TOO_MANY` for both where there are too many words or odd lines.
    """
    slots = np.full((len(kinds), SLOTS), -1, np.int64)
    row, num_odd, at = 0, 0, 0
    while at < len(text):
        line_start, plain = at, True
        for column in range(len(kinds)):
            kind, start = kinds[column], at
            if kind == WORD:
                key = np.uint64(14695981039346656037)  # FNV-1a
                while _byte(text, at) != delimiter and _byte(text, at) != _NEWLINE and _byte(text, at) != _RETURN:
                    plain &= (_byte(text, at) != _QUOTE) & (_byte(text, at) <= _ASCII)
                    key = (key ^ np.uint64(_byte(text, at))) * np.uint64(1099511628211)
                    at += 1
                # Here and not in a function, which would count references to the tables for each word.
                slot = np.int64((key ^ (key >> np.uint64(32))) & np.uint64(SLOTS - 1))
                word, same = slots[column, slot], False
                while word >= 0:
                    first = places[column, word, 0]
                    same = places[column, word, 1] - first == at - start
                    offset = 0
                    while same and offset < at - start:
                        same = _byte(text, first + offset) == _byte(text, start + offset)
                        offset += 1
                    if same:
                        break
                    slot = (slot + 1) & (SLOTS - 1)
                    word = slots[column, slot]
                if plain and not same:
                    word = num_words[column]
                    if word == MAX_WORDS:
                        return TOO_MANY, TOO_MANY
                    places[column, word, 0], places[column, word, 1], slots[column, slot] = start, at, word
                    num_words[column] += 1
                integers[column, row] = word
            else:
                negative = _byte(text, at) == _MINUS
                first = at + negative
                at, value = _digits(text, first, 0)
                digits, behind = at - first, 0
                if kind == DECIMAL and _byte(text, at) == _POINT:
                    first = at + 1
                    at, value = _digits(text, first, value)
                    behind = at - first
                    plain &= behind > 0
                plain &= (digits > 0) & (digits + behind <= (15 if kind == DECIMAL else 18))
                if kind == DECIMAL:
                    # Both are exact, so their quotient is the nearest double (W. D. Clinger, PLDI 1990).
                    number = np.float64(value) / _POWERS[behind if plain else 0]
                    decimals[column, row] = -number if negative else number
                else:
                    plain &= (kind != SHORT_INTEGER) | (value <= _MAX_INT32)
                    integers[column, row] = -value if negative else value
            last = column == len(kinds) - 1
            if last and _byte(text, at) == _RETURN and at + 1 < len(text):
                at += 1
            plain &= _byte(text, at) == (_NEWLINE if last else delimiter)
            if not plain:
                break
            at += 1
        if plain:
            row += 1
            continue
        if num_odd == MAX_ODD:
            return TOO_MANY, TOO_MANY
        while _byte(text, at) != _NEWLINE:
            at += 1
        odd[num_odd, 0], odd[num_odd, 1], odd[num_odd, 2] = row + num_odd, line_start, at
        num_odd += 1
        at += 1
    return row, num_odd


@njit(cache=True, nogil=True, error_model="numpy")
def _digits(text: np.ndarray, at: int, value: Any) -> tuple[int, Any]:
    """Where digits end, and the number that they append to; it overflows where they are too many."""
    while np.uint8(_byte(text, at) - _ZERO) <= 9:
        value = value * 10 + (np.int64(_byte(text, at)) - 48)
        at += 1
    return at, value


@njit(cache=True, nogil=True, error_model="numpy")
def _byte(text: np.ndarray, at: int) -> int:
    """A byte of a text. Unsigned, the place is not looked at for counting from the end, which takes a third longer."""
    return text[np.uint64(at)]
