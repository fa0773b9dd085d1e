"""The instructions of a compiled policy (`slicepilot.agents.runtime.program`), which `program_kernel` runs.

By themselves, since compiling a policy takes no numba.
"""

from __future__ import annotations

# Columns of an instruction. A, B, C are where the operands' positions start in ``index``; for a layer B is where its
# bias and then its matrix start in ``weights``, for layers and reductions C is how many entries make one result.
OP, COUNT, OUT, A, B, C, COLUMNS, RECTIFIED = range(8)
(
    ROUND, RELU, TANH, EXP, LOG, SQRT, NEGATE, NOT, SIGMOID,
    ADD, SUBTRACT, MULTIPLY, DIVIDE, MAXIMUM, MINIMUM, GREATER, LESS, GREATER_EQUAL, LESS_EQUAL, EQUAL, AND, OR,
    WHERE, SUM, MAX, MIN, LAYER,
) = range(27)  # fmt: skip
MAX_COLUMNS = 1024  # of a layer
