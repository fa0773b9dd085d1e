"""Arrow columns from and to NumPy, without Arrow's own conversions: those import pandas where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers(values: npt.NDArray[Any]) -> Any:
    """An Arrow array of numbers (N,), not copied where they are contiguous."""
    contiguous = np.ascontiguousarray(values)
    buffer = pa.py_buffer(contiguous)
    return pa.Array.from_buffers(pa.from_numpy_dtype(contiguous.dtype), len(contiguous), [None, buffer])


def texts(values: Sequence[bytes], kind: Any = None) -> Any:
    """An Arrow array of texts; ``kind`` is ``pa.binary()`` where they need not be UTF-8."""
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(text) for text in values], out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind or pa.string(), len(values), buffers)


def words(codes: npt.NDArray[np.int32], values: Sequence[bytes]) -> Any:
    """An Arrow dictionary array: the text of each code (N,)."""
    return pa.DictionaryArray.from_arrays(numbers(codes), texts(values), safe=False)


def values_of(column: Any) -> npt.NDArray[Any]:
    """A column of numbers (N,), not copied where it is one chunk; where there are nulls, anything may stand."""
    array = column
    if isinstance(column, pa.ChunkedArray):
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    kind = np.dtype({"float": "float32", "double": "float64"}.get(str(array.type), str(array.type)))
    if not len(array):
        return np.empty(0, kind)
    return np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array)]


def codes_of(column: Any) -> tuple[npt.NDArray[np.int32], list[str]]:
    """The codes of a dictionary column of one chunk (N,) and the texts that they stand for."""
    array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    return values_of(array.indices), array.dictionary.to_pylist()


def filtered(table: Any, keep: npt.NDArray[np.bool_]) -> Any:
    """The rows of a table whose mask (N,) is True, one chunk a column."""
    bits = pa.py_buffer(np.packbits(keep, bitorder="little"))
    mask = pa.Array.from_buffers(pa.bool_(), len(keep), [None, bits])
    return table.filter(mask).combine_chunks()
