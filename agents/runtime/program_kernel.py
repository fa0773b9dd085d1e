"""Runs a compiled policy: one compiled loop over its instructions; see `slicepilot.agents.runtime.program`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slicepilot.env.compiled import Array, kernel

from .program_codes import (
    ADD,
    AND,
    COLUMNS,
    COUNT,
    DIVIDE,
    EQUAL,
    EXP,
    GREATER,
    GREATER_EQUAL,
    LAYER,
    LESS,
    LESS_EQUAL,
    LOG,
    MAX,
    MAX_COLUMNS,
    MAXIMUM,
    MINIMUM,
    MULTIPLY,
    NEGATE,
    NOT,
    OP,
    OR,
    OUT,
    RECTIFIED,
    RELU,
    ROUND,
    SQRT,
    SUBTRACT,
    SUM,
    TANH,
    WHERE,
    A,
    B,
    C,
)

# Positions are as narrow as what there is allows.
PROGRAMS = [
    (Array(np.int64, 2), Array(positions, 1), Array(np.float32, 1), Array(np.float64, 1))
    for positions in (np.int16, np.int32)
]


@kernel(*PROGRAMS, fastmath={"contract"})
def execute(program: np.ndarray, index: np.ndarray, weights: np.ndarray, memory: np.ndarray) -> None:
    """Run all instructions.

    Args:
        program: int64 (N, 8), instructions.
        index: int16, positions in ``memory`` of all operands.
        weights: float32, bias and matrix of each layer, row by row.
        memory: float64, inputs and constants at their places; results are written to theirs.
    """
    row = np.empty(MAX_COLUMNS, np.float32)
    for step in range(len(program)):
        op, count, out = program[step, OP], program[step, COUNT], program[step, OUT]
        a, b, c, columns = program[step, A], program[step, B], program[step, C], program[step, COLUMNS]
        if op == LAYER:
            result = row[:columns]
            for first in range(0, count * columns, columns):
                # Slices, and loops over their own length: only those become SIMD code.
                result[:] = weights[b : b + columns]
                matrix = b + columns
                # Four inputs at a time: the result is loaded and stored a quarter as often.
                for _ in range(c // 4):
                    w, x, y, z = memory[index[a]], memory[index[a + 1]], memory[index[a + 2]], memory[index[a + 3]]
                    w, x, y, z = np.float32(w), np.float32(x), np.float32(y), np.float32(z)
                    of_w, of_x = weights[matrix : matrix + columns], weights[matrix + columns : matrix + 2 * columns]
                    rest = matrix + 2 * columns
                    of_y, of_z = weights[rest : rest + columns], weights[rest + columns : rest + 2 * columns]
                    for k in range(len(result)):
                        result[k] += w * of_w[k] + x * of_x[k] + y * of_y[k] + z * of_z[k]
                    a += 4
                    matrix += 4 * columns
                for _ in range(c % 4):
                    factor = np.float32(memory[index[a]])
                    line = weights[matrix : matrix + columns]
                    for k in range(len(line)):
                        result[k] += factor * line[k]
                    a += 1
                    matrix += columns
                results = memory[out + first : out + first + columns]
                if program[step, RECTIFIED]:
                    for column in range(len(result)):
                        results[column] = max(result[column], np.float32(0.0))
                else:
                    results[:] = result
        elif op >= SUM:
            for i in range(count):
                total = memory[index[a + i * c]]
                for k in range(1, c):
                    value = memory[index[a + i * c + k]]
                    if op == SUM:
                        total += value
                    elif op == MAX:
                        total = max(total, value)
                    else:
                        total = min(total, value)
                memory[out + i] = total
        elif op == WHERE:
            for i in range(count):
                memory[out + i] = memory[index[b + i]] if memory[index[a + i]] != 0.0 else memory[index[c + i]]
        elif op >= ADD:
            for i in range(count):
                memory[out + i] = _binary(op, memory[index[a + i]], memory[index[b + i]])
        else:
            for i in range(count):
                memory[out + i] = _unary(op, memory[index[a + i]])


@kernel(inline="always")
def _unary(op: int, x: Any) -> float:
    if op == RELU:
        return max(x, 0.0)
    if op == ROUND:
        return float(np.float32(x))
    if op == TANH:
        return math.tanh(x)
    if op == EXP:
        return math.exp(x)
    if op == LOG:
        return math.log(x)
    if op == SQRT:
        return math.sqrt(x)
    if op == NEGATE:
        return -x
    if op == NOT:
        return 1.0 if x == 0.0 else 0.0
    return 1.0 / (1.0 + math.exp(-x))  # SIGMOID


@kernel(inline="always")
def _binary(op: int, x: Any, y: Any) -> float:
    if op == ADD:
        return x + y
    if op == SUBTRACT:
        return x - y
    if op == MULTIPLY:
        return x * y
    if op == DIVIDE:
        return x / y
    if op == MAXIMUM:
        return max(x, y)
    if op == MINIMUM:
        return min(x, y)
    truth = False
    if op == GREATER:
        truth = x > y
    elif op == LESS:
        truth = x < y
    elif op == GREATER_EQUAL:
        truth = x >= y
    elif op == LESS_EQUAL:
        truth = x <= y
    elif op == EQUAL:
        truth = x == y
    elif op == AND:
        truth = x != 0.0 and y != 0.0
    elif op == OR:
        truth = x != 0.0 or y != 0.0
    return 1.0 if truth else 0.0
