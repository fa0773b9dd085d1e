"""State of L nodes with S slices each, advanced one control period at a time by the compiled kernel."""

from __future__ import annotations

import numpy as np

from slicepilot.env.arrays import FloatArray
from slicepilot.env.knobs import Knobs
from slicepilot.env.telemetry import Telemetry

from . import kernels
from .exogenous import Block, BlockSource
from .hardware import UNLIMITED, HardwareArrays


class Engine:
    """``load`` starts a run, ``apply`` sets the knobs, ``advance`` plays one control period and returns its telemetry.

    ``state`` (see `slicepilot.env.simulator.kernels`) is all that evolves; ``elapsed`` counts periods; ``dropped_mbit``
    (3, S, L) says what was lost in the last period at the N3 buffer, the pacer and the uplink.
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
        self.elapsed = 0
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
            self.elapsed,
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
    def exogenous_row(self) -> FloatArray:
        """The per-slice exogenous figures of the last period, (9, S, L)."""
        if self._block is None:
            raise RuntimeError("no period has been played yet")
        return self._block.slices[self._row - 1]
