"""The trained networks of this project in one compiled function.

They are Deep Sets (Zaheer et al. 2017, arXiv:1703.06114); `slicepilot.training.networks` defines them. onnxruntime
takes 1 to 2 us for each of their 27 to 43 operators, which is too much for a control loop in 100 us (``slicepilot bench
loop``). An exported model names its weights, so they are read from it; any other model runs in onnxruntime.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from slicepilot.agents.runtime.allowed import ModelContents
from slicepilot.env.arrays import FloatArray
from slicepilot.env.compiled import kernel
from slicepilot.env.encoding import FEATURES, KNOB_FEATURES, NUM_FEATURES
from slicepilot.env.knobs import NUM_KNOBS

from .shares import NUM_INPUTS, SHARE_FEATURES
from .shares_kernel import MAX_SHARE

GRAPH_NAME = "deep-sets-"
"""Prefix of the graph's name in a model that consists of such a network; the kind of the network follows."""
KNOBS, CORRECTIONS = "knobs", "corrections"
"""Kinds of outputs: knobs, or corrections of a rule."""

NUM_SHARES = SHARE_FEATURES.index("granted")
HELD = FEATURES.index(KNOB_FEATURES[0])
ACTIVE = FEATURES.index("active")
MOST_SHARES = np.float32(MAX_SHARE)
ZERO, HALF, ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)


class Weights(NamedTuple):
    """Matrices are (inputs, outputs); W is the width, A the number of outputs.

    Attributes:
        first, first_bias, second, second_bias: encoder of one slice's row, D to W to W.
        own, own_bias: from a slice's features to the head's hidden layer.
        context, context_bias: from the context, the mean and the maximum over slices and sums of shares, to the same.
        out, out_bias: W to A.
        direct: D to A, a linear path beside all of this; (0, A) for corrections.
        gain: (A,), of the outputs' tanh.
    """

    first: FloatArray
    first_bias: FloatArray
    second: FloatArray
    second_bias: FloatArray
    own: FloatArray
    own_bias: FloatArray
    context: FloatArray
    context_bias: FloatArray
    out: FloatArray
    out_bias: FloatArray
    direct: FloatArray
    gain: FloatArray


_ENCODER = ("rows.0.weight", "rows.0.bias", "rows.2.weight", "rows.2.bias")
_ACTOR = ("own.weight", "own.bias", "context.weight", "context.bias", "out.weight", "out.bias", "direct.weight", "gain")
PARAMETERS = (*(f"encoder.{name}" for name in _ENCODER), *(f"actor.{name}" for name in _ACTOR))
"""Names of `Weights` in a model: those of PyTorch, where matrices are (outputs, inputs)."""
TRANSPOSED = ".T"
"""Ends the name of a matrix that a model has the other way round."""


class DeepSets:
    """A network with its weights, which runs on tables (L, S, D) to actions (L, S, A)."""

    def __init__(self, kind: str, weights: Weights) -> None:
        self._weights, self._corrects = weights, kind == CORRECTIONS

    @classmethod
    def of(cls, contents: ModelContents, columns: int, actions: int) -> DeepSets | None:
        """The network that a model says to be; None for any other model, or where weights are missing or do not fit."""
        kind = contents.name.removeprefix(GRAPH_NAME)
        if contents.name != f"{GRAPH_NAME}{kind}" or kind not in (KNOBS, CORRECTIONS):
            return None
        named = {"actor.direct.weight": np.zeros((0, actions), np.float32)} if kind == CORRECTIONS else {}
        for name, value in contents.constants.items():
            parameter = name.removesuffix(TRANSPOSED)
            matrix = value.T if value.ndim == 2 and parameter == name else value
            named[parameter.replace(".head.", ".")] = np.array(matrix, order="C")
        try:
            weights = Weights(*(named[parameter] for parameter in PARAMETERS))
        except KeyError:
            return None
        return cls(kind, weights) if _fits(weights, kind, columns, actions) else None

    def bind(self, table: FloatArray, action: FloatArray) -> None:
        """Arrays that `run` reads and fills, (L, S, D) and (L, S, A)."""
        _, num_slices, _ = table.shape
        width = len(self._weights.first_bias)
        scratch = np.zeros((2, num_slices, width), np.float32), np.zeros(len(self._weights.context), np.float32)
        self._arguments = table, action, self._weights, *scratch, self._corrects

    def run(self) -> None:
        """Decide."""
        _forward(*self._arguments)


def _fits(weights: Weights, kind: str, columns: int, actions: int) -> bool:
    width = len(weights.first_bias)
    corrects = kind == CORRECTIONS
    shapes: list[tuple[int, ...]] = [
        *((columns, width), (width,), (width, width), (width,), (width, width), (width,)),
        *((2 * width + (0 if corrects else NUM_SHARES), width), (width,), (width, actions), (actions,)),
        *((0 if corrects else columns, actions), (actions,)),
    ]
    right_width = corrects or (columns == NUM_INPUTS and actions == NUM_KNOBS)
    return right_width and all(value.shape == shape for value, shape in zip(weights, shapes, strict=True))


@kernel
def _add_product(row: FloatArray, matrix: FloatArray, total: FloatArray) -> None:
    """Add the product of a vector and a matrix to a vector."""
    inputs, outputs = matrix.shape
    for i in range(inputs):
        value = row[i]
        if value != ZERO:
            for j in range(outputs):
                total[j] += value * matrix[i, j]


@kernel
def _rectify(row: FloatArray) -> None:
    for j in range(len(row)):
        row[j] = np.maximum(row[j], ZERO)  # what is no number stays so, and is refused as an action


@kernel
def _forward(
    table: FloatArray,
    action: FloatArray,
    weights: Weights,
    hidden: FloatArray,
    context: FloatArray,
    corrects: bool,
) -> None:
    """Actions (L, S, A) of a table (L, S, D).

    Args:
        table: observations.
        action: filled in.
        weights: of the network.
        hidden: (2, S, W), scratch.
        context: scratch.
        corrects: the outputs are corrections of a rule.
    """
    lanes, num_slices, _ = table.shape
    width, actions = weights.out.shape
    before, features = hidden[0], hidden[1]
    for lane in range(lanes):
        rows, outputs = table[lane], action[lane]
        present = ZERO
        context[:] = ZERO
        for s in range(num_slices):
            features[s] = ZERO
            if rows[s, ACTIVE] > HALF:
                present += ONE
                before[s] = weights.first_bias
                _add_product(rows[s], weights.first, before[s])
                _rectify(before[s])
                features[s] = weights.second_bias
                _add_product(before[s], weights.second, features[s])
                _rectify(features[s])
            for j in range(width):
                context[j] += features[s, j]
                context[width + j] = max(context[width + j], features[s, j])
            if not corrects:
                for j in range(NUM_SHARES):
                    context[2 * width + j] += rows[s, NUM_FEATURES + j]
        present = max(present, ONE)
        for j in range(width):
            context[j] /= present
        for j in range(2 * width, len(context)):
            context[j] = min(context[j], MOST_SHARES)
        shared = before[0]
        shared[:] = weights.own_bias + weights.context_bias
        _add_product(context, weights.context, shared)
        nice = ZERO
        for s in range(num_slices - 1, -1, -1):  # `shared` is the first slice's own row
            if not rows[s, ACTIVE] > HALF:
                continue
            before[s] = shared
            _add_product(features[s], weights.own, before[s])
            _rectify(before[s])
            outputs[s] = weights.out_bias
            _add_product(before[s], weights.out, outputs[s])
            if corrects:
                continue
            _add_product(rows[s], weights.direct, outputs[s])
            nice += outputs[s, 1]
        for s in range(num_slices):
            if rows[s, ACTIVE] > HALF:
                if not corrects:
                    outputs[s, 1] -= nice / present
                for a in range(actions):
                    outputs[s, a] = weights.gain[a] * math.tanh(outputs[s, a])
            for a in range(actions):
                if not rows[s, ACTIVE] > HALF:
                    outputs[s, a] = ZERO if corrects else rows[s, HELD + a]
                outputs[s, a] = np.minimum(np.maximum(outputs[s, a], -ONE), ONE)
