"""A policy compiled for one shape of its input: for one node, faster than a runtime that dispatches by node.

A runtime spends about half a microsecond on each of a policy's hundred small operators, and touches hundreds of pages
of code and bookkeeping on the way. Here all that depends on shapes alone is done once. Every tensor is a table of
positions in one memory, so that slicing, transposing, gathering, concatenating and broadcasting are done on the tables
and cost nothing at run time; what is left are a few dozen instructions for `slicepilot.agents.runtime.program_kernel`.

onnxruntime stays the reference: who uses a program compares the two first (`slicepilot.agents.learned.agent`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import program_codes as kernel
from .allowed import MOST_ENTRIES
from .onnx_file import DTYPES, Graph, Node, OnnxError, read_graph

if TYPE_CHECKING:
    from slicepilot.env.arrays import FloatArray

Array = npt.NDArray[Any]
Positions = npt.NDArray[np.int32]
FLOAT32_CODE, FLOAT64_CODE = 1, 11

UNARY = {
    "Relu": kernel.RELU, "Tanh": kernel.TANH, "Exp": kernel.EXP, "Log": kernel.LOG, "Sqrt": kernel.SQRT,
    "Neg": kernel.NEGATE, "Not": kernel.NOT, "Sigmoid": kernel.SIGMOID,
}  # fmt: skip
BINARY = {
    "Add": kernel.ADD, "Sub": kernel.SUBTRACT, "Mul": kernel.MULTIPLY, "Div": kernel.DIVIDE, "Max": kernel.MAXIMUM,
    "Min": kernel.MINIMUM, "Greater": kernel.GREATER, "Less": kernel.LESS, "GreaterOrEqual": kernel.GREATER_EQUAL,
    "LessOrEqual": kernel.LESS_EQUAL, "Equal": kernel.EQUAL, "And": kernel.AND, "Or": kernel.OR,
}  # fmt: skip
REDUCTIONS = {"ReduceSum": kernel.SUM, "ReduceMax": kernel.MAX, "ReduceMin": kernel.MIN, "ReduceMean": kernel.SUM}
TRUTHS = {"Not", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal", "And", "Or"}


@dataclass(frozen=True)
class _Tensor:
    """Where a tensor's entries are in memory, in its shape; ``double`` if it is computed in float64."""

    at: Positions
    double: bool = False


@dataclass
class Program:
    """Instructions and memory of one policy for one shape; see `program_kernel.execute`."""

    instructions: npt.NDArray[np.int64]
    index: npt.NDArray[np.int16] | Positions
    weights: npt.NDArray[np.float32]
    memory: npt.NDArray[np.float64]
    input_size: int
    output: Positions
    _input: npt.NDArray[np.float64] = field(init=False)
    _execute: Callable[..., None] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._input = self.memory[: self.input_size]

    def ready(self) -> None:
        """Import what runs it, which `run` would do at first; raises ImportError where numba is not installed."""
        from .program_kernel import execute

        self._execute = execute

    def run(self, table: FloatArray, action: FloatArray) -> None:
        """Read a contiguous input, write the output in place."""
        if self._execute is None:
            self.ready()
            assert self._execute is not None
        self._input[:] = table.ravel()
        self._execute(self.instructions, self.index, self.weights, self.memory)
        action[:] = self.memory[self.output]


def compile_graph(graph: Graph, shape: tuple[int, ...]) -> Program:
    """Compile a graph with one input of this shape and one output.

    Raises:
        OnnxError: an operator, or a use of one, that is not supported; the message names it.
    """
    [source], [target] = graph.inputs, graph.outputs
    uses = Counter(name for node in graph.nodes for name in node.inputs)
    compiler = _Compiler(graph.constants, {name for name, count in uses.items() if count == 1} - {target})
    size = int(np.prod(shape))
    compiler.tensors[source] = _Tensor(compiler.reserve(size).reshape(shape))
    for node in graph.nodes:
        compiler.add(node)
    output = compiler.tensor(target).at
    memory = np.concatenate(compiler.memory)
    instructions = np.asarray(compiler.instructions, np.int64).reshape(-1, kernel.RECTIFIED + 1)
    # What is smaller is sooner back in the caches.
    narrow = np.int16 if len(memory) <= np.iinfo(np.int16).max else np.int32
    return Program(
        instructions,
        _joined(compiler.index, narrow),
        _joined([part.ravel() for part in compiler.weights], np.float32),
        memory,
        size,
        output,
    )


def _joined(parts: list[Array], dtype: npt.DTypeLike) -> Array:
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)


class _Compiler:
    """One pass over the nodes: constants are folded, moves become tables, the rest instructions."""

    def __init__(self, constants: dict[str, Array], used_once: set[str]) -> None:
        self.constants = dict(constants)
        self.used_once = used_once
        # Results of layers that can still take in a bias and a ReLU: their instruction and their part of the weights.
        self.layers: dict[str, tuple[list[int], npt.NDArray[np.float32]]] = {}
        self.tensors: dict[str, _Tensor] = {}
        self.memory: list[npt.NDArray[np.float64]] = []
        self.index: list[Positions] = []
        self.weights: list[npt.NDArray[np.float32]] = []
        self.instructions: list[list[int]] = []
        self._used = self._indexed = self._weighed = 0

    # -- memory ------------------------------------------------------------------------------------------------

    def reserve(self, size: int, values: Array | None = None) -> Positions:
        """Positions of new memory, with initial values."""
        start = self._used
        self._used += size
        _bounded(self._used)
        self.memory.append(np.zeros(size) if values is None else np.asarray(values, np.float64).ravel())
        return np.arange(start, start + size, dtype=np.int32)

    def tensor(self, name: str) -> _Tensor:
        """A tensor by name; a constant is put into memory when it is first needed there."""
        if name not in self.tensors:
            value = self.constants[name]
            at = self.reserve(value.size, value).reshape(value.shape)
            self.tensors[name] = _Tensor(at, value.dtype == np.float64)
        return self.tensors[name]

    def _indexed_at(self, at: Positions) -> int:
        start = self._indexed
        _bounded(start + at.size)
        self.index.append(np.ascontiguousarray(at).ravel())
        self._indexed += at.size
        return start

    def _emit(
        self, op: int, shape: tuple[int, ...], operands: list[Positions], double: bool, entries: int = 0
    ) -> _Tensor:
        """An instruction over ``shape`` results; operands are broadcast, but that of a reduction is taken as it is."""
        size = int(np.prod(shape))
        out = self.reserve(size)
        wide = operands if entries else [np.broadcast_to(at, shape) for at in operands]
        starts = [self._indexed_at(at) for at in wide] + [0, 0, 0]
        self.instructions.append(
            [op, size, int(out[0]) if size else 0, starts[0], starts[1], entries or starts[2], 0, 0]
        )
        return _Tensor(out.reshape(shape), double)

    # -- nodes -------------------------------------------------------------------------------------------------

    def add(self, node: Node) -> None:
        """Compile one node."""
        handler = HANDLERS.get(node.op)
        if handler is None:
            raise OnnxError(f"operator {node.op}; accepted: {', '.join(sorted(HANDLERS))}")
        results = handler(self, node)
        for name, result in zip(node.outputs, results, strict=True):
            _bounded(result.at.size if isinstance(result, _Tensor) else result.size)
            if isinstance(result, _Tensor):
                self.tensors[name] = result
            else:
                self.constants[name] = result

    def constant(self, name: str) -> Array:
        """A value that is known at compile time."""
        if name not in self.constants:
            raise OnnxError(f"{name!r} is computed; accepted: a constant, where it determines a shape or a matrix")
        return self.constants[name]

    def optional(self, node: Node, position: int) -> Array | None:
        """A constant input that may be left out."""
        given = position < len(node.inputs) and node.inputs[position]
        return self.constant(node.inputs[position]) if given else None

    def known(self, node: Node) -> list[Array] | None:
        """The values of all inputs, if they are constants."""
        if all(name in self.constants for name in node.inputs if name):
            return [self.constants[name] for name in node.inputs if name]
        return None


def _bounded(entries: int) -> None:
    if entries > MOST_ENTRIES:
        raise OnnxError(f"tensors of more than {MOST_ENTRIES} entries; accepted: {MOST_ENTRIES}")


Results = list["_Tensor | Array"]
Handler = Callable[[_Compiler, Node], Results]


def _move(function: Callable[[_Compiler, Node, Array], list[Array]]) -> Handler:
    """A node that only moves entries of its first input: done to a constant's value, to the positions of others."""

    def handle(compiler: _Compiler, node: Node) -> Results:
        name = node.inputs[0]
        if name in compiler.constants:
            return list(function(compiler, node, compiler.constants[name]))
        tensor = compiler.tensor(name)
        return [_Tensor(at, tensor.double) for at in function(compiler, node, tensor.at)]

    return handle


def _axes(compiler: _Compiler, node: Node) -> tuple[int, ...] | None:
    """Axes as an input (since opset 13 and 18) or as an attribute."""
    given = compiler.optional(node, 1)
    axes = node.attributes.get("axes") if given is None else given.tolist()
    return None if axes is None else tuple(axes)


def _slice(compiler: _Compiler, node: Node, value: Array) -> list[Array]:
    starts, ends = compiler.constant(node.inputs[1]), compiler.constant(node.inputs[2])
    axes, steps = compiler.optional(node, 3), compiler.optional(node, 4)
    cut = [slice(None)] * value.ndim
    for k, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        axis = k if axes is None else int(axes[k])
        step = 1 if steps is None else int(steps[k])
        if step < 0:
            raise OnnxError(f"Slice: step {step}; accepted: above 0")
        cut[axis] = slice(start, end, step)
    return [value[tuple(cut)]]


def _gather_nd(compiler: _Compiler, node: Node, value: Array) -> list[Array]:
    if node.attributes.get("batch_dims", 0):
        raise OnnxError("GatherND: batch_dims; accepted: 0")
    indices = compiler.constant(node.inputs[1])
    return [value[tuple(np.moveaxis(indices, -1, 0))]]


def _gather(compiler: _Compiler, node: Node, value: Array) -> list[Array]:
    return [np.take(value, compiler.constant(node.inputs[1]), axis=node.attributes.get("axis", 0))]


def _split(compiler: _Compiler, node: Node, value: Array) -> list[Array]:
    axis, sizes = node.attributes.get("axis", 0), compiler.optional(node, 1)
    if sizes is None:
        width = -(-value.shape[axis] // len(node.outputs))
        edges = [width * k for k in range(1, len(node.outputs))]
    else:
        edges = np.cumsum(sizes)[:-1].tolist()
    return list(np.split(value, edges, axis))


def _reshape(compiler: _Compiler, node: Node, value: Array) -> list[Array]:
    shape = [value.shape[k] if n == 0 else n for k, n in enumerate(compiler.constant(node.inputs[1]).tolist())]
    return [value.reshape(shape)]


def _squeeze(compiler: _Compiler, node: Node, value: Array) -> list[Array]:
    return [np.squeeze(value, _axes(compiler, node))]


def _unsqueeze(compiler: _Compiler, node: Node, value: Array) -> list[Array]:
    return [np.expand_dims(value, _axes(compiler, node) or ())]


def _transpose(compiler: _Compiler, node: Node, value: Array) -> list[Array]:
    return [np.transpose(value, node.attributes.get("perm"))]


def _expand(compiler: _Compiler, node: Node, value: Array) -> list[Array]:
    shape = np.broadcast_shapes(value.shape, tuple(compiler.constant(node.inputs[1]).tolist()))
    return [np.broadcast_to(value, shape)]


def _concat(compiler: _Compiler, node: Node) -> Results:
    axis, known = node.attributes["axis"], compiler.known(node)
    if known is not None:
        return [np.concatenate(known, axis)]
    parts = [compiler.tensor(name) for name in node.inputs]
    return [_Tensor(np.concatenate([part.at for part in parts], axis), any(part.double for part in parts))]


def _cast(compiler: _Compiler, node: Node) -> Results:
    code, name = node.attributes["to"], node.inputs[0]
    if name in compiler.constants:
        return [compiler.constants[name].astype(DTYPES[code])]
    tensor = compiler.tensor(name)
    if code == FLOAT32_CODE and tensor.double:
        return [compiler._emit(kernel.ROUND, tensor.at.shape, [tensor.at], double=False)]
    if code not in (FLOAT32_CODE, FLOAT64_CODE):
        raise OnnxError(f"Cast to type {code}; accepted: float32, float64")
    return [_Tensor(tensor.at, code == FLOAT64_CODE)]


def _elementwise(name: str) -> Handler:
    op, numpy_function = (UNARY | BINARY)[name], NUMPY[name]

    def handle(compiler: _Compiler, node: Node) -> Results:
        known = compiler.known(node)
        if known is not None:
            return [np.asarray(numpy_function(*known))]
        result, *others = (compiler.tensor(name) for name in node.inputs)
        if not others:
            return [compiler._emit(op, result.at.shape, [result.at], result.double)]
        for other in others:
            shape = np.broadcast_shapes(result.at.shape, other.at.shape)
            result = compiler._emit(op, shape, [result.at, other.at], result.double or other.double)
        return [_Tensor(result.at) if name in TRUTHS else result]

    return handle


def _clip(compiler: _Compiler, node: Node) -> Results:
    result = compiler.tensor(node.inputs[0])
    for position, op in ((1, kernel.MAXIMUM), (2, kernel.MINIMUM)):
        if position < len(node.inputs) and node.inputs[position]:
            limit = compiler.tensor(node.inputs[position])
            result = compiler._emit(op, result.at.shape, [result.at, limit.at], result.double)
    return [result]


def _where(compiler: _Compiler, node: Node) -> Results:
    chosen = [compiler.tensor(name) for name in node.inputs]
    shape = np.broadcast_shapes(*(tensor.at.shape for tensor in chosen))
    return [compiler._emit(kernel.WHERE, shape, [t.at for t in chosen], any(t.double for t in chosen[1:]))]


def _reduce(compiler: _Compiler, node: Node) -> Results:
    tensor, keep = compiler.tensor(node.inputs[0]), bool(node.attributes.get("keepdims", 1))
    given = _axes(compiler, node)
    axes = tuple(range(tensor.at.ndim)) if given is None else tuple(axis % tensor.at.ndim for axis in given)
    kept = tuple(k for k in range(tensor.at.ndim) if k not in axes)
    shape = tuple(1 if k in axes else n for k, n in enumerate(tensor.at.shape))
    entries = int(np.prod([tensor.at.shape[k] for k in axes]))
    flat = np.transpose(tensor.at, kept + axes)
    result = compiler._emit(REDUCTIONS[node.op], shape, [flat], tensor.double, entries)
    if node.op == "ReduceMean":
        count = _Tensor(compiler.reserve(1, np.asarray([float(entries)])))
        result = compiler._emit(kernel.DIVIDE, shape, [result.at, count.at.reshape(())], tensor.double)
    return [result if keep else _Tensor(np.squeeze(result.at, axes), result.double)]


def _layer(compiler: _Compiler, node: Node, matrix: Array, bias: Array | None = None) -> Results:
    """Rows of a tensor times a constant matrix, plus a constant bias."""
    left = compiler.tensor(node.inputs[0])
    *rows, inner = left.at.shape
    if matrix.ndim != 2 or matrix.shape[0] != inner:
        raise OnnxError(f"product of shapes {left.at.shape} and {matrix.shape}; accepted: rows times a matrix")
    count, columns = int(np.prod(rows)), matrix.shape[1]
    if left.double or columns > kernel.MAX_COLUMNS:
        raise OnnxError(f"product with {columns} columns; accepted: {kernel.MAX_COLUMNS}, of float32")
    out = compiler.reserve(count * columns)
    layer = [kernel.LAYER, count, int(out[0]), compiler._indexed_at(left.at), compiler._weighed, inner, columns, 0]
    weights = np.zeros((1 + inner, columns), np.float32)
    weights[0], weights[1:] = 0.0 if bias is None else bias, matrix
    compiler.instructions.append(layer)
    compiler.weights.append(weights)
    compiler._weighed += weights.size
    compiler.layers[node.outputs[0]] = layer, weights
    return [_Tensor(out.reshape(*rows, columns))]


def _matmul(compiler: _Compiler, node: Node) -> Results:
    return _layer(compiler, node, compiler.constant(node.inputs[1]))


def _gemm(compiler: _Compiler, node: Node) -> Results:
    scales = (node.attributes.get("alpha", 1.0), node.attributes.get("beta", 1.0))
    if scales != (1.0, 1.0) or node.attributes.get("transA", 0):
        raise OnnxError("Gemm: alpha, beta or transA; accepted: their defaults")
    matrix = compiler.constant(node.inputs[1])
    matrix = matrix.T if node.attributes.get("transB", 0) else matrix
    return _layer(compiler, node, matrix, compiler.optional(node, 2))


def _add(compiler: _Compiler, node: Node) -> Results:
    """A constant that is the same for all rows of a layer becomes its bias."""
    name, other = node.inputs
    if name in compiler.layers and name in compiler.used_once and other in compiler.constants:
        layer, weights = compiler.layers[name]
        bias = compiler.constants[other]
        if bias.shape == weights[0].shape:
            weights[0] += bias
            compiler.layers[node.outputs[0]] = layer, weights
            return [compiler.tensor(name)]
    return _elementwise("Add")(compiler, node)


def _relu(compiler: _Compiler, node: Node) -> Results:
    """Of a layer whose result nobody else takes: part of it."""
    [name] = node.inputs
    if name in compiler.layers and name in compiler.used_once:
        compiler.layers[name][0][kernel.RECTIFIED] = 1
        return [compiler.tensor(name)]
    return _elementwise("Relu")(compiler, node)


def _shape(compiler: _Compiler, node: Node) -> Results:
    shape = compiler.tensor(node.inputs[0]).at.shape
    return [np.asarray(shape[node.attributes.get("start", 0) : node.attributes.get("end")], np.int64)]


NUMPY: dict[str, Callable[..., Array]] = {
    "Relu": lambda x: np.maximum(x, 0), "Tanh": np.tanh, "Exp": np.exp, "Log": np.log, "Sqrt": np.sqrt,
    "Neg": np.negative, "Not": np.logical_not, "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Add": np.add, "Sub": np.subtract,
    "Mul": np.multiply, "Div": np.divide, "Max": np.maximum, "Min": np.minimum, "Greater": np.greater, "Less": np.less,
    "GreaterOrEqual": np.greater_equal, "LessOrEqual": np.less_equal, "Equal": np.equal, "And": np.logical_and,
    "Or": np.logical_or,
}  # fmt: skip
MOVES: dict[str, Callable[[_Compiler, Node, Array], list[Array]]] = {
    "Slice": _slice, "Gather": _gather, "GatherND": _gather_nd, "Split": _split, "Reshape": _reshape,
    "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Transpose": _transpose, "Expand": _expand,
    "Identity": lambda compiler, node, value: [value],
}  # fmt: skip
HANDLERS: dict[str, Handler] = (
    {name: _move(function) for name, function in MOVES.items()}
    | {name: _elementwise(name) for name in (*UNARY, *BINARY)}
    | dict.fromkeys(REDUCTIONS, _reduce)
    | {
        "Add": _add, "Relu": _relu, "MatMul": _matmul, "Gemm": _gemm, "Concat": _concat, "Cast": _cast, "Clip": _clip,
        "Where": _where,
        "Shape": _shape, "Constant": lambda compiler, node: [np.asarray(node.attributes["value"])],
    }
)  # fmt: skip


def compile_policy(model: bytes, shape: tuple[int, int, int]) -> Program:
    """Compile a bundle's model for one shape (L, S, D); raises OnnxError."""
    return compile_graph(read_graph(model), shape)
