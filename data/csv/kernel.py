"""Plain CSV text to columns in one compiled loop: the common case, in a fifth of the time of Arrow's parser.

Plain are rows with the right number of fields, none of them quoted or padded: integers of 1 to 19 digits; decimals of
1 to 15 digits, with a digit on either side of the point if there is one; ASCII words, few different ones in a column.
For those the outcome is, bit for bit, what Arrow makes of them. All other lines are left to Arrow, and so is everything
where nothing is compiled.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..arrow import numbers, words
from .native import compiled

INTEGER, SHORT_INTEGER, DECIMAL, WORD, OTHER = range(5)
TOO_MANY = -1
MAX_WORDS = 256  # different ones in a column of a block
SLOTS = 1024  # in which words are looked up: a power of two, some times as many
MAX_ODD = 1024  # lines of a block that are not plain

_KINDS = {
    pa.int64(): INTEGER,
    pa.int32(): SHORT_INTEGER,
    pa.float64(): DECIMAL,
    pa.dictionary(pa.int32(), pa.string()): WORD,
}
_TYPES = {INTEGER: np.int64, SHORT_INTEGER: np.int32, DECIMAL: np.float64, WORD: np.int32}


class Plain(NamedTuple):
    """The plain rows of a block as a table of one chunk; number, beginning and end of each other line (M, 3)."""

    table: Any
    odd: npt.NDArray[np.int64]


def read_plain(text: bytearray, schema: Any, delimiter: str) -> Plain | None:
    """The plain rows of a block of whole lines; None where much is not plain, or there is no loop for the columns."""
    kinds = np.asarray([_KINDS.get(column.type, OTHER) for column in schema], np.int64)
    loops = compiled()
    if loops is None or len(kinds) < 2 or OTHER in kinds or not text.endswith(b"\n") or not delimiter.isascii():
        return None
    # With what ends it, a number has two bytes at least, and a word one.
    columns = _workspace(len(kinds), len(text) // int(np.where(kinds == WORD, 1, 2).sum()) + 1)
    found, num_words = np.empty((len(kinds), MAX_WORDS, 3), np.int64), np.zeros(len(kinds), np.int64)
    slots = np.full((len(kinds), SLOTS), -1, np.int16)
    odd, num_rows = np.empty((MAX_ODD, 3), np.int64), np.zeros(1, np.int64)
    num_odd = loops.parse_plain(
        np.frombuffer(text, np.uint8),
        len(text),
        ord(delimiter),
        kinds,
        len(kinds),
        columns,
        columns.strides[0],
        found,
        num_words,
        slots,
        odd,
        num_rows,
    )
    if num_odd == TOO_MANY:
        return None
    arrays: list[Any] = []
    for index, kind in enumerate(kinds.tolist()):
        column = columns[index].view(_TYPES[kind])[: num_rows[0]].copy()
        if kind == WORD:
            places = found[index, : num_words[index], 1:]
            arrays.append(words(column, [bytes(text[start : start + length]) for start, length in places.tolist()]))
        else:
            arrays.append(numbers(column))
    return Plain(pa.Table.from_arrays(arrays, schema=schema), odd[:num_odd])


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
