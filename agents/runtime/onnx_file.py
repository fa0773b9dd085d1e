"""Reading an ONNX model: the nodes of its graph and the values of its initialisers, without the onnx package.

The protobuf wire format (protobuf.dev, "Encoding") and the field numbers of ``onnx.proto3``, as far as a policy needs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
# TensorProto.DataType
DTYPES: dict[int, npt.DTypeLike] = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 11: np.float64}


class OnnxError(ValueError):
    """A model, or a part of one, that cannot be read."""


@dataclass(frozen=True)
class Node:
    """One operator application; an omitted optional input is an empty name."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which they can run, constants by name, names of inputs and outputs."""

    nodes: tuple[Node, ...]
    constants: dict[str, npt.NDArray[Any]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def read_graph(model: bytes) -> Graph:
    """The graph of a serialised ModelProto; raises OnnxError."""
    try:
        return _graph(_only(_fields(model), 7))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise OnnxError(f"not an ONNX model as it is exported here: {error!r}") from error


def _graph(data: bytes) -> Graph:
    nodes: list[Node] = []
    constants: dict[str, npt.NDArray[Any]] = {}
    inputs: list[str] = []
    outputs: list[str] = []
    for number, value in _fields(data):
        if number == 1:
            nodes.append(_node(value))
        elif number == 5:
            name, array = _tensor(value)
            constants[name] = array
        elif number in (11, 12):
            (inputs if number == 11 else outputs).append(_only(_fields(value), 1).decode())
    if not outputs:
        raise OnnxError("a graph without outputs")
    return Graph(tuple(nodes), constants, tuple(n for n in inputs if n not in constants), tuple(outputs))


def _node(data: bytes) -> Node:
    inputs: list[str] = []
    outputs: list[str] = []
    attributes: dict[str, Any] = {}
    op = ""
    for number, value in _fields(data):
        if number == 1:
            inputs.append(value.decode())
        elif number == 2:
            outputs.append(value.decode())
        elif number == 4:
            op = value.decode()
        elif number == 5:
            name, attribute = _attribute(value)
            attributes[name] = attribute
    return Node(op, tuple(inputs), tuple(outputs), attributes)


def _attribute(data: bytes) -> tuple[str, Any]:
    """Name and value: float, int, bytes, tensor or list of ints."""
    name, kind = "", 0
    found: dict[int, Any] = {}
    ints: list[int] = []
    for number, value in _fields(data):
        if number == 1:
            name = value.decode()
        elif number == 20:
            kind = value
        elif number == 8:
            ints += _integers(value)
        else:
            found[number] = value
    if kind == 1:
        return name, struct.unpack("<f", found[2])[0]
    if kind == 2:
        return name, _signed(found.get(3, 0))
    if kind == 3:
        return name, found[4]
    if kind == 4:
        return name, _tensor(found[5])[1]
    if kind == 7:
        return name, ints
    raise OnnxError(f"attribute {name!r} of type {kind}; accepted: 1, 2, 3, 4, 7")


def _tensor(data: bytes) -> tuple[str, npt.NDArray[Any]]:
    dims: list[int] = []
    name, kind, raw = "", 0, None
    typed: dict[int, bytes | list[int]] = {}
    for number, value in _fields(data):
        if number == 1:
            dims += _integers(value)
        elif number == 2:
            kind = value
        elif number == 8:
            name = value.decode()
        elif number == 9:
            raw = value
        elif number in (5, 7):
            typed.setdefault(number, [])
            typed[number] += _integers(value)  # type: ignore[operator]
        elif number in (4, 10):
            typed[number] = value
        elif number == 14 and value:
            raise OnnxError(f"tensor {name!r}: data in another file; accepted: a self-contained model")
    dtype = np.dtype(DTYPES[kind])
    if raw is not None:
        array = np.frombuffer(raw, dtype.newbyteorder("<"))
    else:
        values = next(iter(typed.values()), b"")
        array = np.frombuffer(values, dtype.newbyteorder("<")) if isinstance(values, bytes) else np.asarray(values)
    return name, array.astype(dtype).reshape(dims)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of every field: an unsigned integer, or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size = 8 if kind == FIXED64 else 4
        if kind == LENGTH:
            size, at = _varint(data, at)
        elif kind not in (FIXED64, FIXED32):
            raise OnnxError(f"wire type {kind}; accepted: 0, 1, 2, 5")
        if at + size > len(data):
            raise OnnxError("the model ends inside a field")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & (1 << 64) - 1, at


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _integers(value: int | bytes) -> list[int]:
    """One integer, or packed ones."""
    if isinstance(value, int):
        return [_signed(value)]
    found, at = [], 0
    while at < len(value):
        one, at = _varint(value, at)
        found.append(_signed(one))
    return found


def _only(fields: Iterator[tuple[int, Any]], wanted: int) -> bytes:
    found = [value for number, value in fields if number == wanted]
    if len(found) != 1 or not isinstance(found[0], bytes):
        raise OnnxError(f"{len(found)} fields of number {wanted}; accepted: one of bytes")
    return found[0]
