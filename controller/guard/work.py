"""One tick of the guard through its four kernels, with what they work with.

The four are called from one compiled function: a call from Python costs a fraction of a microsecond for every array,
and several where nothing is in the caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.env.arrays import FloatArray
from slicepilot.env.compiled import Array, digest_of, kernel
from slicepilot.env.knobs import NUM_KNOBS, Knobs
from slicepilot.env.telemetry import SLICE_FIELDS, Telemetry

from . import layout as at
from .capacity import notice
from .floors import below
from .layout import NODE, PAST, SLICE, Measured, State, Structured, state_dtype
from .moves import move
from .node import settle
from .rules import Rules
from .telemetry import doubts
from .trips import slices_tripped
from .watch import watch

_TABLE = Array(np.float32, 3)


def judge_of(sources: str) -> Callable[..., tuple[int, int, int, bool]]:
    """Compile a tick; ``sources`` of the four kernels stand for them in numba's cache (`digest_of`).

    The fields of `layout`'s records are part of the arguments' types, and so of the cache's key.
    """

    @kernel(
        (
            *(_TABLE, Array(np.float32, 2), Array(np.float32, 1), Array(np.bool_, 2), _TABLE, _TABLE),
            *(bool, int, _TABLE, Array(NODE, 1), Array(SLICE, 1), Array(PAST, 2)),
            *(Array(np.int64, 3), Array(np.uint32, 1)),
        )
    )
    def judge(
        measured_slices: npt.NDArray[Any],
        measured_node: npt.NDArray[Any],
        age_s: npt.NDArray[Any],
        valid: npt.NDArray[Any],
        wanted: npt.NDArray[Any],
        held: npt.NDArray[Any],
        failed: bool,
        now: int,
        out: npt.NDArray[Any],
        node: Structured,
        slices: Structured,
        past: Structured,
        reversals: npt.NDArray[Any],
        reasons: npt.NDArray[Any],
    ) -> tuple[int, int, int, bool]:
        """Outcome, the node's reasons, level, whether it cannot wait; what may pass is in ``out``, float32 (3, S, 1).

        The parts of `Measured` and `State` one by one: taking a tuple apart costs a call from Python more than arrays.
        """
        assert sources
        s = len(slices)
        if valid.shape != (s, 1) or measured_slices.shape != (len(SLICE_FIELDS), s, 1) or held.shape != out.shape:
            return at.MISSHAPEN, 0, 0, False
        # What has failed stays as it is.
        if wanted.shape != held.shape:
            failed = True
        if failed:
            wanted = held
        measured = Measured(measured_slices, measured_node, age_s, valid)
        state = State(node, slices, past, reversals, reasons)
        doubt = doubts(measured, state)
        level, bits = watch(measured, doubt, wanted, failed, now, state)
        move(wanted, held, now, state)
        outcome, urgent = settle(wanted, held, level, bits, state, out)
        return at.AS_HELD if failed and outcome == at.AS_WANTED else outcome, bits, level, urgent

    return judge


judge: Any = judge_of(digest_of(doubts, notice, below, slices_tripped, watch, move, settle))


class Work:
    """A state of its own, and the kernels to work on it.

    Attributes:
        state: rules, memory from tick to tick, and the last tick's reasons.
        out: float32 (3, S, 1), what may pass, if the last outcome was CHANGED.
    """

    def __init__(self, rules: Rules, num_slices: int) -> None:
        whole = np.zeros(1, state_dtype(num_slices, rules.window, rules.reversals))
        self.state, self.out = State.of(whole), np.zeros((NUM_KNOBS, num_slices, 1), np.float32)
        self.state.node["rules"], self.state.slices["rules"] = rules.node, rules.slices
        self.state.node["conditions"]["rules"], self.state.slices["missing"]["rules"] = rules.conditions, rules.missing
        self.state.slices["knobs"]["rules"] = rules.knobs
        self.state.begin()
        # NumPy copies bytes ten times as fast as fields.
        self._bytes = whole.view(np.uint8)

    def take(self, other: Work) -> None:
        """Remember what another of the same rules does."""
        self._bytes[:] = other._bytes

    def run(
        self, telemetry: Telemetry, wanted: Knobs, held: Knobs, failed: bool, now_ns: int
    ) -> tuple[int, int, int, bool]:
        """Judge a decision; if it ``failed``, or has another shape than what holds, what holds takes its place.

        Returns:
            Outcome (AS_WANTED, AS_HELD, CHANGED, MISSHAPEN), the node's reasons, the level, whether it cannot wait.
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
            return at.MISSHAPEN, 0, 0, False

    def _judge(
        self, telemetry: Telemetry, wanted: Knobs, held: Knobs, failed: bool, now_ns: int
    ) -> tuple[int, int, int, bool]:
        outcome: tuple[int, int, int, bool] = judge(
            telemetry.slices,
            telemetry.node,
            telemetry.age_s,
            telemetry.valid,
            wanted.values,
            held.values,
            failed,
            now_ns,
            self.out,
            *self.state,
        )
        return outcome


def _float32(array: FloatArray) -> FloatArray:
    return np.array(array, np.float32, order="C")


def _plain(telemetry: Telemetry) -> Telemetry:
    slices, node, age_s = map(_float32, (telemetry.slices, telemetry.node, telemetry.age_s))
    return Telemetry(slices, node, age_s, np.array(telemetry.valid, np.bool_, order="C"))


def _plain_knobs(knobs: Knobs) -> Knobs:
    return Knobs(_float32(knobs.values), knobs.nice_scope)
