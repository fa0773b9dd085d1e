"""A policy and its codec in one compiled call: from the telemetry of one node to knobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from slicepilot.env.arrays import FloatArray
from slicepilot.env.compiled import Array, digest_of, kernel
from slicepilot.env.encoding import NUM_FEATURES
from slicepilot.env.knobs import NUM_KNOBS, Knobs
from slicepilot.env.telemetry import Telemetry

from .codec import AXES, KNOB_ROWS, MEASURED, NO_NUMBER, SCALE, CompiledCodec, decode, encode
from .program import Program
from .program_kernel import PROGRAMS, execute

STOCK = 8
"""Knobs made at once: a loop finds cold caches at each tick, and eight take little more than twice as long as one."""

_OUTPUT = Array(np.int32, 3)


class CompiledPolicy:
    """What codec and program do one after the other.

    Args:
        program: of the policy; its memory is used.
        codec: for the same number of slices.
    """

    def __init__(self, program: Program, codec: CompiledCodec) -> None:
        self.codec = codec
        _, num_slices, knobs = program.output.shape
        self._shape = STOCK, 2, knobs, num_slices, 1
        self._stock: list[FloatArray] = []
        program.memory[: program.input_size] = codec.table.ravel()
        self._kept = (
            *(codec.scale, codec.axes),
            *(program.instructions, program.index, program.weights, program.memory, program.output),
        )

    def decide(self, telemetry: Telemetry, knob_rows: FloatArray) -> tuple[Knobs, FloatArray]:
        """As `CompiledCodec.decode`; raises ValueError."""
        if not self._stock:
            self._restock()
        decided = self._stock.pop()
        if not _decide(telemetry.slices, telemetry.node, telemetry.valid, knob_rows, decided, *self._kept):
            raise ValueError(NO_NUMBER)
        values, rows = decided
        return Knobs(values, self.codec.nice_scope), rows

    def _restock(self) -> None:
        """Arrays for the next decisions, (2, 3, S, 1) each: knobs, and their rows."""
        self._stock.extend(np.empty(self._shape, np.float32))


def _compiled(sources: str) -> Callable[..., bool]:
    """``sources`` of what is called stand for it in numba's cache (`digest_of`)."""

    @kernel(*((*MEASURED, KNOB_ROWS, Array(np.float32, 4), SCALE, AXES, *program, _OUTPUT) for program in PROGRAMS))
    def decide(
        slices: np.ndarray,
        node: np.ndarray,
        valid: np.ndarray,
        knob_rows: np.ndarray,
        decided: np.ndarray,
        scale: np.ndarray,
        axes: np.ndarray,
        instructions: np.ndarray,
        index: np.ndarray,
        weights: np.ndarray,
        memory: np.ndarray,
        output: np.ndarray,
    ) -> bool:
        assert sources
        num_slices, rows = len(valid), decided[1]
        table = memory[: num_slices * NUM_FEATURES].reshape((1, num_slices, NUM_FEATURES))
        encode(slices, node, valid, knob_rows, scale, table)
        execute(instructions, index, weights, memory)
        for s in range(num_slices):
            for knob in range(NUM_KNOBS):
                rows[knob, s, 0] = memory[output[0, s, knob]]
        return decode(axes, rows, decided[0])

    return decide


_decide: Any = _compiled(digest_of(encode, execute))
