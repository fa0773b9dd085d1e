"""One tick of the guard through its four kernels, with what they work with.

The four are called from one compiled function, which takes all that lasts from tick to tick as one buffer for each
precision. A call costs a fraction of a microsecond for every array, and several where nothing is in the caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit
from numba.extending import register_jitable

from ...env.compiled import digest_of
from ...env.knobs import NUM_KNOBS, Knobs
from ...env.slices import FloatArray
from ...env.telemetry import NODE_FIELDS, SLICE_FIELDS, Telemetry
from . import layout as at
from .layout import Memory
from .moves import move
from .node import settle
from .rules import Rules
from .telemetry import doubts
from .watch import watch

_FIELDS, _NODE_FIELDS, _NICES = len(SLICE_FIELDS), len(NODE_FIELDS), 40

Array = npt.NDArray[Any]


@register_jitable
def _view(buffer: Array, start: int, shape: tuple[int, ...]) -> tuple[Array, int]:
    """An array inside a buffer, and where the next one starts."""
    size = 1
    for length in shape:
        size *= length
    end = start + size
    return buffer[start:end].reshape(shape), end


@register_jitable
def _float_views(buffer: Array, s: int) -> tuple[Array, ...]:
    """Rules of knobs, slices, moves and trust, most, nice_weight; knob_values, sums; chosen (3, S)."""
    knobs, end = _view(buffer, 0, (at.KNOB_RULES, NUM_KNOBS, s))
    slices, end = _view(buffer, end, (at.SLICE_RULES, s))
    moves, end = _view(buffer, end, (at.MOVE_RULES,))
    trust, end = _view(buffer, end, (at.TRUST_RULES,))
    most, end = _view(buffer, end, (_FIELDS + _NODE_FIELDS,))
    nice_weight, end = _view(buffer, end, (_NICES,))
    values, end = _view(buffer, end, (3, NUM_KNOBS, s))
    sums, end = _view(buffer, end, (3, s))
    chosen, end = _view(buffer, end, (NUM_KNOBS, s))
    return knobs, slices, moves, trust, most, nice_weight, values, sums, chosen


@register_jitable
def _int_views(buffer: Array, s: int) -> tuple[Array, ...]:
    """Delays; node, conditions, service, counts, knob_times, reversals; course (S,) comes first."""
    course, end = _view(buffer, 0, (s,))
    delays, end = _view(buffer, end, (2, at.CONDITIONS + s))
    node, end = _view(buffer, end, (at.NODE_MEMORY,))
    conditions, end = _view(buffer, end, (3, at.CONDITIONS + s))
    service, end = _view(buffer, end, (4, s))
    counts, end = _view(buffer, end, (at.REASONS, s + 1))
    times, end = _view(buffer, end, (at.KNOB_TIMES, NUM_KNOBS, s))
    reversals, end = _view(buffer, end, (NUM_KNOBS, s, (len(buffer) - end) // (NUM_KNOBS * s)))
    return course, delays, node, conditions, service, counts, times, reversals


@register_jitable
def _single_views(buffer: Array, s: int) -> tuple[Array, Array, Array]:
    """Of float32: seen, seen_node, past."""
    seen, end = _view(buffer, 0, (_FIELDS, s))
    seen_node, end = _view(buffer, end, (_NODE_FIELDS,))
    past, end = _view(buffer, end, ((len(buffer) - end) // (3 * s), 3, s))
    return seen, seen_node, past


def judge_of(sources: str) -> Callable[..., tuple[int, int, int]]:
    """Compile a tick; ``sources`` of the four kernels stand for them in numba's cache (`digest_of`)."""

    @njit(cache=True, error_model="numpy")
    def judge(
        slices: Array,
        node: Array,
        age_s: Array,
        valid: Array,
        wanted: Array,
        held: Array,
        failed: bool,
        now: int,
        floats: Array,
        ints: Array,
        singles: Array,
        reasons: Array,
        out: Array,
    ) -> tuple[int, int, int]:
        """Outcome, the node's reasons, level; what may pass is in ``out``, float32 (3, S, 1)."""
        assert sources
        s = len(reasons)
        if valid.shape != (s, 1) or slices.shape != (_FIELDS, s, 1) or held.shape != (NUM_KNOBS, s, 1):
            return at.MISSHAPEN, 0, 0
        # What has failed stays as it is.
        if wanted.shape != held.shape:
            failed = True
        if failed:
            wanted = held
        knobs, slice_rules, moves, trust, most, nice_weight, values, sums, chosen = _float_views(floats, s)
        course, delays, memory, conditions, service, counts, times, reversals = _int_views(ints, s)
        seen, seen_node, past = _single_views(singles, s)
        doubt = doubts(slices, node, age_s, valid, most, trust, memory, service, sums, past, seen, seen_node)
        level, bits = watch(
            *(slices, valid, doubt, wanted, failed, now),
            *(trust, slice_rules, delays, memory, conditions, service, sums, course, reasons),
        )
        move(
            *(wanted, held, now),
            *(knobs, moves, memory, times, values, reversals, course, reasons, chosen),
        )
        outcome = settle(
            *(wanted, held, level == 0, bits, out),
            *(knobs, slice_rules, moves, nice_weight, values, counts, chosen, reasons),
        )
        return at.AS_HELD if failed and outcome == at.AS_WANTED else outcome, bits, level

    return judge


judge: Any = judge_of(digest_of(doubts, watch, move, settle))


def never_compile_again() -> None:
    """From now on the kernels refuse arrays they are not compiled for: a tick has no seconds for that."""
    judge.disable_compile()


class Work:
    """Rules, memory, and what the kernels hand to each other.

    Attributes:
        memory: from tick to tick.
        reasons: uint32 (S,), of the last tick.
        out: float32 (3, S, 1), what may pass, if the last outcome was CHANGED.
    """

    def __init__(self, rules: Rules, num_slices: int) -> None:
        s, fresh = num_slices, Memory.fresh(num_slices, rules.reversals, rules.window)
        self.reasons, self.out = np.zeros(s, np.uint32), np.zeros((NUM_KNOBS, s, 1), np.float32)
        floats = _joined(
            *(rules.knobs, rules.slices, rules.moves, rules.trust, rules.most, rules.nice_weight),
            *(fresh.knob_values, fresh.sums, np.zeros((NUM_KNOBS, s))),
        )
        ints = _joined(
            *(np.zeros(s, np.int64), rules.delays, fresh.node, fresh.conditions, fresh.service, fresh.counts),
            *(fresh.knob_times, fresh.reversals),
        )
        singles = _joined(fresh.seen, fresh.seen_node, fresh.past)
        *_, values, sums, _ = _float_views(floats, s)
        _, _, node, conditions, service, counts, times, reversals = _int_views(ints, s)
        seen, seen_node, past = _single_views(singles, s)
        self.memory = Memory(
            *(node, conditions, times, values, reversals, service, sums, past, seen, seen_node, counts)
        )
        self._buffers = floats, ints, singles
        self._kept = *self._buffers, self.reasons, self.out

    def take(self, other: Work) -> None:
        """Remember what another of the same rules does."""
        for own, buffer in zip(self._buffers, other._buffers, strict=True):
            own[:] = buffer

    def run(self, telemetry: Telemetry, wanted: Knobs, held: Knobs, failed: bool, now_ns: int) -> tuple[int, int, int]:
        """Judge a wish; if it ``failed``, or has another shape than what holds, that is the wish.

        Returns:
            Outcome (AS_WANTED, AS_HELD, CHANGED, MISSHAPEN), the node's reasons, the level.
        """
        # Arrays of another layout, precision or number of dimensions are refused before anything is touched.
        try:
            return self._judge(telemetry, wanted, held, failed, now_ns)
        except TypeError:
            if wanted.values.shape != held.values.shape:
                failed, wanted = True, held
        try:
            return self._judge(_plain(telemetry), _plain_knobs(wanted), _plain_knobs(held), failed, now_ns)
        except TypeError:
            return at.MISSHAPEN, 0, 0

    def _judge(
        self, telemetry: Telemetry, wanted: Knobs, held: Knobs, failed: bool, now_ns: int
    ) -> tuple[int, int, int]:
        outcome: tuple[int, int, int] = judge(
            telemetry.slices,
            telemetry.node,
            telemetry.age_s,
            telemetry.valid,
            wanted.values,
            held.values,
            failed,
            now_ns,
            *self._kept,
        )
        return outcome


def _joined(*arrays: Array) -> Array:
    """One after the other in one buffer."""
    return np.concatenate([array.ravel() for array in arrays])


def _float32(array: FloatArray) -> FloatArray:
    return np.array(array, np.float32, order="C")


def _plain(telemetry: Telemetry) -> Telemetry:
    slices, node, age_s = map(_float32, (telemetry.slices, telemetry.node, telemetry.age_s))
    return Telemetry(slices, node, age_s, np.array(telemetry.valid, np.bool_, order="C"))


def _plain_knobs(knobs: Knobs) -> Knobs:
    return Knobs(_float32(knobs.values), knobs.nice_scope)
