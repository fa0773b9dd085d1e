"""Runs a compiled policy: one loop over its instructions, compiled by numba. See `slicepilot.agents.program`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

# Columns of an instruction. A, B, C are where the operands' positions start in ``index``; for a matrix product B is
# where the matrix starts in ``weights``, for a reduction C is how many entries make one result.
OP, COUNT, OUT, A, B, C, COLUMNS = range(7)
(
    ROUND, RELU, TANH, EXP, LOG, SQRT, NEGATE, NOT, SIGMOID,
    ADD, SUBTRACT, MULTIPLY, DIVIDE, MAXIMUM, MINIMUM, GREATER, LESS, GREATER_EQUAL, LESS_EQUAL, EQUAL, AND, OR,
    WHERE, SUM, MAX, MIN, PRODUCT,
) = range(27)  # fmt: skip


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def execute(program: np.ndarray, index: np.ndarray, weights: np.ndarray, memory: np.ndarray) -> None:
    """Run all instructions.

    Args:
        program: int64 (N, 7), instructions.
        index: int32, positions in ``memory`` of all operands.
        weights: float64, the matrices of products, row by row.
        memory: float64, inputs and constants at their places; results are written to theirs.
    """
    for step in range(len(program)):
        op, count, out = program[step, OP], program[step, COUNT], program[step, OUT]
        a, b, c, columns = program[step, A], program[step, B], program[step, C], program[step, COLUMNS]
        if op == PRODUCT:
            for row in range(count):
                # Slices, and loops over their own length: only those become SIMD code.
                result = memory[out + row * columns : out + (row + 1) * columns]
                result[:] = 0.0
                for inner in range(c):
                    factor = memory[index[a + row * c + inner]]
                    line = weights[b + inner * columns : b + (inner + 1) * columns]
                    for column in range(len(line)):
                        result[column] += factor * line[column]
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


@njit(cache=True, error_model="numpy", inline="always")
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


@njit(cache=True, error_model="numpy", inline="always")
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
