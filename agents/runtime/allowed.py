"""What a policy's model may consist of, checked in its serialised form before any runtime reads it.

A policy is a straight line of operators of the default domain over tensors of bounded size whose shapes do not depend
on what is observed. So it takes the same time and memory at every decision, and what was tried out once stays true.
Loops, branches, functions of the model's own, operators of other domains and data in other files are refused.

Field numbers are those of ``onnx.proto3``. A protobuf parser merges a message that is given twice and takes the last
of repeated single values, so every occurrence is looked at here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from slicepilot.env.arrays import FloatArray

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types (protobuf.dev, "Encoding")."""
FLOAT, FLOAT_BYTES = 1, 4
"""The data type of 32-bit floats."""
MOST_MODEL_BYTES = 32 << 20
MOST_NODES, MOST_FIELDS = 4096, 200_000
MOST_ENTRIES = 1 << 22
"""Limit on all constants together, and on values computed from them while a policy is compiled."""

_OPERATORS = """
Abs Add And ArgMax ArgMin BatchNormalization Cast Ceil Clip Concat Constant ConstantOfShape Cos Div Elu Equal Erf Exp
Expand Flatten Floor Gather GatherElements GatherND Gelu Gemm Greater GreaterOrEqual HardSigmoid HardSwish Identity
IsInf IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max Mean Min Mish Mod Mul Neg Not Or
Pad Pow Range Reciprocal ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
ReduceSumSquare Relu Reshape Round Selu Shape Sigmoid Sign Sin Slice Softmax Softplus Softsign Split Sqrt Squeeze Sub
Sum Tanh Tile Transpose Unsqueeze Where Xor
"""
OPERATORS = frozenset(_OPERATORS.split())
_SHAPED_BY = {
    "ConstantOfShape": (0,), "Expand": (1,), "Pad": (1, 3), "Range": (0, 1, 2), "Reshape": (1,), "Slice": (1, 2, 3, 4),
    "Split": (1,), "Squeeze": (1,), "Tile": (1,), "Unsqueeze": (1,),
} | {name: (1,) for name in OPERATORS if name.startswith("Reduce")}  # fmt: skip
"""Inputs that a result's shape depends on."""

_OF_MODEL = {20: "training", 25: "functions of its own"}
_OF_GRAPH = {14: "quantisation", 15: "sparse constants"}
_OF_ATTRIBUTE = {
    6: "a graph inside of a node", 11: "graphs inside of a node", 10: "tensors", 14: "a type", 15: "types",
    21: "a reference", 22: "a sparse tensor", 23: "sparse tensors",
}  # fmt: skip
_OF_TENSOR = {3: "a segment", 13: "data in another file"}
_DOMAINS = {b"", b"ai.onnx"}


class OnnxError(ValueError):
    """A model that is not accepted."""


@dataclass(frozen=True)
class ModelContents:
    """A model's description of itself.

    Attributes:
        name: of its graph.
        constants: its initial tensors of 32-bit floats by name, read-only.
    """

    name: str
    constants: dict[str, FloatArray]


def check_model(model: bytes) -> ModelContents:
    """Raises OnnxError for a model that is not such a straight line; the message names the first thing that is not."""
    if len(model) > MOST_MODEL_BYTES:
        raise OnnxError(f"{len(model)} bytes; the most is {MOST_MODEL_BYTES}")
    try:
        check = _Check()
        check.model(memoryview(model))
    except IndexError:
        raise OnnxError("not a model: it ends inside a field") from None
    return ModelContents(check.name, check.constants)


class _Check:
    """One pass over the wire format; counts are of the whole model."""

    def __init__(self) -> None:
        self._fields = self._entries = self._graphs = 0
        self._nodes: list[tuple[str, list[bytes], list[bytes]]] = []
        self._inputs: set[bytes] = set()
        self._initial: set[bytes] = set()
        self.name = ""
        self.constants: dict[str, FloatArray] = {}

    def model(self, data: memoryview) -> None:
        for number, value in self._messages(data, _OF_MODEL):
            if number == 7:
                self._graphs += 1
                self._graph(_bytes(value))
            elif number == 8:
                for part, domain in self._messages(_bytes(value), {}):
                    if part == 1 and bytes(_bytes(domain)) not in _DOMAINS:
                        raise OnnxError("operators of another domain than ONNX")
        if self._graphs != 1:
            raise OnnxError(f"not a model: {self._graphs} graphs; expected one")
        self._check_shapes()

    def _graph(self, data: memoryview) -> None:
        for number, value in self._messages(data, _OF_GRAPH):
            if number == 1:
                self._node(_bytes(value))
            elif number == 2:
                self.name = _text(_bytes(value))
            elif number == 5:
                self._initial |= self._tensor(_bytes(value))
            elif number == 11:
                self._inputs |= {bytes(_bytes(name)) for part, name in self._messages(_bytes(value), {}) if part == 1}

    def _node(self, data: memoryview) -> None:
        inputs: list[bytes] = []
        outputs: list[bytes] = []
        operators: set[str] = set()
        for number, value in self._messages(data, {}):
            if number in (1, 2):
                (inputs if number == 1 else outputs).append(bytes(_bytes(value)))
            elif number == 4:
                operators.add(_text(_bytes(value)))
            elif number == 5:
                self._attribute(_bytes(value))
            elif number == 7 and bytes(_bytes(value)) not in _DOMAINS:
                raise OnnxError("an operator of another domain than ONNX")
        if len(operators) != 1 or not operators <= OPERATORS:
            names = ", ".join(sorted(operators)) or "none"
            raise OnnxError(f"operator {names[:40]!r}; expected one of {', '.join(sorted(OPERATORS))}")
        self._nodes.append((operators.pop(), inputs, outputs))
        if len(self._nodes) > MOST_NODES:
            raise OnnxError(f"more than {MOST_NODES} operators")

    def _attribute(self, data: memoryview) -> None:
        for number, value in self._messages(data, _OF_ATTRIBUTE):
            if number == 5:
                self._tensor(_bytes(value))

    def _tensor(self, data: memoryview) -> set[bytes]:
        """Its names."""
        dims: list[int] = []
        names: set[bytes] = set()
        kind, entries = 0, memoryview(b"")
        for number, value in self._messages(data, _OF_TENSOR):
            if number == 2 and isinstance(value, int):
                kind = value
            elif number == 9:
                entries = _bytes(value)
            elif number == 1 and isinstance(value, int):
                dims.append(value)
            elif number == 1:
                packed, at = _bytes(value), 0
                while at < len(packed) and len(dims) <= 8:
                    size, at = _varint(packed, at)
                    dims.append(size)
            elif number == 8:
                names.add(bytes(_bytes(value)))
            elif number == 14 and value:
                raise OnnxError("a tensor with data in another file")
        if len(dims) > 8:
            raise OnnxError("a tensor of more than 8 dimensions")
        # The product of the sizes that are not 0: an empty tensor is small, whatever its other sizes.
        self._entries += math.prod(size for size in dims if size)
        if self._entries > MOST_ENTRIES:
            raise OnnxError(f"constants of more than {MOST_ENTRIES} entries")
        if kind == FLOAT and entries and len(entries) == FLOAT_BYTES * math.prod(dims):
            values = np.frombuffer(entries, "<f4").reshape(dims)
            self.constants |= {_text(memoryview(name)): values for name in names}
        return names

    def _check_shapes(self) -> None:
        """No shape may depend on the input's values. Nodes come in an order in which they can run."""
        computed = self._inputs - self._initial  # a constant may be listed as an input with a default
        for operator, inputs, outputs in self._nodes:
            for position in _SHAPED_BY.get(operator, ()):
                if position < len(inputs) and inputs[position] in computed:
                    raise OnnxError(f"{operator}: a shape that depends on what is observed")
            if operator != "Shape" and not computed.isdisjoint(inputs):
                computed.update(outputs)

    def _messages(self, data: memoryview, refused: dict[int, str]) -> Iterator[tuple[int, int | memoryview]]:
        """(number, value) of every field; raises OnnxError for a refused field."""
        at = 0
        while at < len(data):
            self._fields += 1
            if self._fields > MOST_FIELDS:
                raise OnnxError(f"more than {MOST_FIELDS} fields")
            key, at = _varint(data, at)
            number, kind = key >> 3, key & 7
            if key >> 32 or not number:
                raise OnnxError("not a model: a field without a number")
            if number in refused:
                raise OnnxError(f"{refused[number]}; expected a straight line of operators with all their data")
            if kind == VARINT:
                value, at = _varint(data, at)
                yield number, value
                continue
            if kind == LENGTH:
                size, at = _varint(data, at)
            elif kind in (FIXED64, FIXED32):
                size = 8 if kind == FIXED64 else 4
            else:
                raise OnnxError(f"not a model: wire type {kind}")
            if at + size > len(data):
                raise OnnxError("not a model: it ends inside a field")
            yield number, data[at : at + size]
            at += size


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise OnnxError("not a model: a number instead of a message")
    return value


def _text(data: memoryview) -> str:
    return bytes(data).decode(errors="replace")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):  # ten bytes at most
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    raise OnnxError("not a model: a number of more than ten bytes")
