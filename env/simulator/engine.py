"""State of L nodes with S slices each, advanced one control period at a time by the compiled kernel."""

from __future__ import annotations

import numpy as np

from slicepilot.env.arrays import FloatArray, IntArray
from slicepilot.env.knobs import Knobs
from slicepilot.env.telemetry import Telemetry

from . import kernels
from .exogenous import Block, BlockSource, Exogenous
from .hardware import UNLIMITED, HardwareArrays


class Engine:
    """``load`` starts a run, ``apply`` sets the knobs, ``advance`` plays one control period and returns its telemetry.

    ``state`` (see `slicepilot.env.simulator.kernels`) is all that evolves; ``elapsed`` counts periods, and ``begun``
    (L,) says at which of them each lane's run began; ``dropped_mbit`` (3, S, L) says what was lost in the last period
    at the N3 buffer, the pacer and the uplink.
    """

    def __init__(self, num_slices: int, lanes: int) -> None:
        self.num_slices, self.lanes = num_slices, lanes
        self.telemetry = Telemetry.empty(num_slices, lanes)
        self.state = np.zeros((kernels.NUM_STATE, num_slices, lanes), np.float32)
        self.dropped_mbit = np.zeros((kernels.NUM_DROPS, num_slices, lanes), np.float32)

    def load(
        self,
        exogenous: BlockSource,
        hardware: HardwareArrays,
        period_s: FloatArray,
        threads: FloatArray,
        request_mcpu: FloatArray,
    ) -> None:
        """Start a run with empty queues and no knobs. ``period_s`` (L,), ``threads`` and ``request_mcpu`` (S, L)."""
        self.exogenous, self.hardware, self.period_s = exogenous, hardware, period_s
        self.pods = np.stack([threads, request_mcpu])
        self._hardware_rows = hardware.kernel_rows()
        self.state[:] = 0
        self.state[kernels.CFS_BUDGET_S] = UNLIMITED
        self.elapsed, self.begun = 0, np.zeros(self.lanes, np.int64)
        self._block: Block | None = None
        self._row = 0
        self.apply(Knobs.none(self.num_slices, self.lanes))

    def apply(self, knobs: Knobs) -> None:
        """Set the knobs for the periods to come."""
        self.knobs = knobs

    def advance(self) -> Telemetry:
        """Play one control period; returns ``telemetry`` (views, valid until the next call)."""
        block = self._block
        if block is None or self._row >= len(block.slices):
            block = self._block = self.exogenous.next_block()
            self._row = 0
        knobs, telemetry = self.knobs, self.telemetry
        kernels.advance(
            self.elapsed - self.begun,
            self._row,
            block.slices,
            block.node,
            self._hardware_rows,
            self.hardware.uplink_classes,
            self.period_s,
            self.pods,
            knobs.values,
            knobs.nice_scope == "group",
            self.state,
            self.dropped_mbit,
            telemetry.slices,
            telemetry.node,
            telemetry.valid,
        )
        self._row += 1
        self.elapsed += 1
        return telemetry

    @property
    def rows_left(self) -> int:
        """Periods of the block in hand that have not been played."""
        return 0 if self._block is None else len(self._block.slices) - self._row

    def adopt(self, part: Engine, lanes: IntArray) -> None:
        """Put the lanes of ``part``, which has played its first period, in place of the lanes of these numbers.

        Runs of both come from `Exogenous` of the same scenario and node. The first block of ``part`` is as long as what
        is left of the block in hand, and its first period.
        """
        block, new = self._block, part._block
        if block is None or new is None or part.elapsed != 1:
            raise RuntimeError("lanes are replaced during a run, by lanes that have played a period")
        for mine, theirs in (
            (self.state, part.state),
            (self.dropped_mbit, part.dropped_mbit),
            (self.telemetry.slices, part.telemetry.slices),
            (self.telemetry.node, part.telemetry.node),
            (self.telemetry.valid, part.telemetry.valid),
        ):
            mine[..., lanes] = theirs
        rows = slice(self._row, self._row + len(new.slices) - 1)
        block.slices[rows, ..., lanes] = new.slices[1:]
        block.node[rows, ..., lanes] = new.node[1:]
        self.begun[lanes] = self.elapsed - 1
        exogenous, source = self.exogenous, part.exogenous
        if isinstance(exogenous, Exogenous) and isinstance(source, Exogenous):
            exogenous.adopt(source, lanes, self.begun)

    @property
    def exogenous_row(self) -> FloatArray:
        """The per-slice exogenous figures of the last period, (9, S, L)."""
        if self._block is None:
            raise RuntimeError("no period has been played yet")
        return self._block.slices[self._row - 1]
