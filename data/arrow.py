"""Arrow columns from and to NumPy, without Arrow's own conversions: those import pandas where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SAMPLE = 8  # every how manieth value is looked at to choose an encoding
_NUMPY_KINDS = {"float": "float32", "double": "float64"}  # where Arrow's name of a type is not NumPy's


def numbers(values: npt.NDArray[Any], kind: Any = None, valid: npt.NDArray[np.bool_] | None = None) -> Any:
    """An Arrow array of numbers or booleans (N,); numbers are not copied where they are contiguous.

    Args:
        kind: Arrow type that they are bits of, such as a timestamp; None: that of the array.
        valid: (N,) False where null is to stand; None: nowhere.
    """
    there = None if valid is None else _bits(valid)
    if values.dtype == np.bool_:
        return pa.Array.from_buffers(pa.bool_(), len(values), [there, _bits(values)])
    contiguous = np.ascontiguousarray(values)
    arrow = kind or pa.from_numpy_dtype(contiguous.dtype)
    return pa.Array.from_buffers(arrow, len(contiguous), [there, pa.py_buffer(contiguous)])


def texts(values: Sequence[bytes] | Sequence[str]) -> Any:
    """An Arrow array of texts."""
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    ends = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def words(codes: npt.NDArray[Any], values: Sequence[bytes] | Sequence[str]) -> Any:
    """An Arrow dictionary array: the text of each code (N,), of the codes' type."""
    return pa.DictionaryArray.from_arrays(numbers(codes), texts(values), safe=False)


def values_of(column: Any) -> npt.NDArray[Any]:
    """A column of numbers, booleans or times (N,), times as integers; values at nulls are undefined.

    Numbers of a single chunk are not copied. Raises TypeError for types that are no numbers.
    """
    array = column
    if isinstance(column, pa.ChunkedArray):
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    arrow = str(array.type)
    kind = np.dtype(np.int64 if pa.types.is_timestamp(array.type) else _NUMPY_KINDS.get(arrow, arrow))
    if not len(array):
        return np.empty(0, kind)
    rows, data = slice(array.offset, array.offset + len(array)), array.buffers()[1]
    if kind == np.bool_:
        return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[rows].astype(np.bool_)
    return np.frombuffer(data, kind)[rows]


def codes_of(column: Any) -> tuple[npt.NDArray[Any], list[str]]:
    """The codes of a dictionary column of a single chunk (N,), and the text of each code."""
    array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    return values_of(array.indices), array.dictionary.to_pylist()


def filtered(table: Any, keep: npt.NDArray[np.bool_]) -> Any:
    """The rows of a table whose mask (N,) is True, a single chunk per column."""
    return table.filter(numbers(keep)).combine_chunks()


def hardly_repeats(column: Any) -> bool:
    """Whether more than half of a sample of a column's numbers differ; False for other types."""
    if not pa.types.is_floating(column.type) and not pa.types.is_integer(column.type):
        return False
    bits = values_of(column).view(f"u{column.type.bit_width // 8}")
    sample = bits[::_SAMPLE]
    return 2 * len(np.unique(sample)) > len(sample)


def _bits(mask: npt.NDArray[np.bool_]) -> Any:
    return pa.py_buffer(np.packbits(mask, bitorder="little"))
