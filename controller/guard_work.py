"""One tick of the guard through its four kernels, with what they work with."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..env.knobs import Knobs
from ..env.slices import FloatArray
from ..env.telemetry import Telemetry
from . import guard_layout as at
from .guard_layout import Memory
from .guard_moves import move
from .guard_node import settle
from .guard_rules import Rules
from .guard_telemetry import doubts
from .guard_watch import watch

_KERNELS: tuple[Any, ...] = (doubts, watch, move, settle)


def never_compile_again() -> None:
    """From now on the kernels refuse arrays they are not compiled for: a tick has no seconds for that."""
    for kernel in _KERNELS:
        kernel.disable_compile()


class Work:
    """Rules, memory, and what the kernels hand to each other.

    Attributes:
        memory: from tick to tick.
        reasons: uint32 (S,), of the last tick.
    """

    def __init__(self, rules: Rules, num_slices: int) -> None:
        self.memory = memory = Memory.fresh(num_slices, rules.reversals, rules.window)
        self.reasons = reasons = np.zeros(num_slices, np.uint32)
        course, chosen = np.zeros(num_slices, np.int64), np.zeros((at.KNOBS, num_slices))
        node, service, sums = memory.node, memory.service, memory.sums
        times, values = memory.knob_times, memory.knob_values
        averages = service, sums, memory.past
        self._doubts = rules.most, rules.trust, node, *averages, memory.seen, memory.seen_node
        self._watch = (
            *(rules.trust, rules.slices, rules.delays),
            *(node, memory.conditions, service, sums, course, reasons),
        )
        self._move = rules.knobs, rules.moves, node, times, values, memory.reversals, course, reasons, chosen
        self._settle = (
            *(rules.knobs, rules.slices, rules.moves, rules.nice_weight),
            *(values, memory.counts, chosen, reasons),
        )

    def run(
        self, telemetry: Telemetry, wish: Knobs, held: Knobs, failed: bool, now_ns: int, out: FloatArray
    ) -> tuple[int, int, int]:
        """Judge a wish; what may pass is in ``out``, float32 (3, S, 1), if the outcome is CHANGED.

        Returns:
            Outcome (AS_WANTED, AS_HELD, CHANGED), the node's reasons, the level.
        """
        # A kernel refuses arrays of another layout or precision before it touches anything.
        try:
            doubt = self._believe(telemetry)
        except TypeError:
            telemetry = _plain(telemetry)
            doubt = self._believe(telemetry)
        try:
            level, bits = self._trust(telemetry, doubt, wish, failed, now_ns)
        except TypeError:
            wish = _plain_knobs(wish)
            level, bits = self._trust(telemetry, doubt, wish, failed, now_ns)
        try:
            self._go(wish, held, now_ns)
        except TypeError:
            held = _plain_knobs(held)
            self._go(wish, held, now_ns)
        outcome = settle(*_rows(wish), *_rows(held), level == 0, bits, out, *self._settle)
        return outcome, bits, level

    def _believe(self, telemetry: Telemetry) -> int:
        return doubts(telemetry.slices, telemetry.node, telemetry.age_s, telemetry.valid, *self._doubts)

    def _trust(self, telemetry: Telemetry, doubt: int, wish: Knobs, failed: bool, now_ns: int) -> tuple[int, int]:
        return watch(telemetry.slices, telemetry.valid, doubt, *_rows(wish), failed, now_ns, *self._watch)

    def _go(self, wish: Knobs, held: Knobs, now_ns: int) -> None:
        move(*_rows(wish), *_rows(held), now_ns, *self._move)


def _rows(knobs: Knobs) -> tuple[FloatArray, FloatArray, FloatArray]:
    return knobs.cpu_limit_mcpu, knobs.nice, knobs.egress_mbps


def _float32(array: FloatArray) -> FloatArray:
    return np.array(array, np.float32, order="C")


def _plain(telemetry: Telemetry) -> Telemetry:
    slices, node, age_s = map(_float32, (telemetry.slices, telemetry.node, telemetry.age_s))
    return Telemetry(slices, node, age_s, np.array(telemetry.valid, np.bool_, order="C"))


def _plain_knobs(knobs: Knobs) -> Knobs:
    limits, nices, rates = map(_float32, _rows(knobs))
    return Knobs(limits, nices, rates, knobs.nice_scope)
