"""The future of a running simulator: its true exogenous sequence, and engines that play alternatives against it.

Nothing exogenous depends on an action (see `slicepilot.env.simulator.exogenous`), so the arrivals and the noise of the
periods to come can be generated ahead of the run, and any number of knob plans can be tried on them.
"""

from __future__ import annotations

import copy

import numpy as np

from . import kernels
from .backend import SimulatorBackend
from .engine import Engine
from .exogenous import Block, Window, tile


class Future:
    """The exogenous figures of the periods that an engine has not played yet; the engine is left untouched.

    A copy of the run's generator generates blocks on demand; past blocks are dropped.
    """

    def __init__(self, engine: Engine) -> None:
        self._exogenous = copy.deepcopy(engine.exogenous)
        block, self._known = engine._block, engine.elapsed
        self._blocks: list[tuple[int, Block]] = []
        if block is not None:
            first = engine.elapsed - engine._row
            self._blocks.append((first, block))
            self._known = first + len(block.slices)

    def window(self, first: int, steps: int, copies: int = 1) -> Block:
        """Periods ``first`` .. ``first + steps - 1`` as one block, its lanes repeated; ``first`` must not go back."""
        while self._known < first + steps:
            block = self._exogenous.next_block()
            self._blocks.append((self._known, block))
            self._known += len(block.slices)
        self._blocks = [(at, block) for at, block in self._blocks if at + len(block.slices) > first]
        if self._blocks[0][0] > first:
            raise ValueError(f"period {first} is past; expected {self._blocks[0][0]} or later")
        spans = [
            (block, slice(max(first - at, 0), first + steps - at)) for at, block in self._blocks if at < first + steps
        ]
        slices = np.concatenate([block.slices[span] for block, span in spans])
        node = np.concatenate([block.node[span] for block, span in spans])
        return tile(Block(slices, node), copies)


class Lookahead:
    """C alternatives of each of a simulator's L lanes, played forward from the simulator's present state.

    ``start(steps)`` fixes the state and the periods ahead, ``rewind()`` goes back to it; in between, ``engine`` (C * L
    lanes, alternative c of lane l at c * L + l) takes knobs and advances like any engine. Make a new object after each
    reset of the backend.
    """

    def __init__(self, backend: SimulatorBackend, copies: int) -> None:
        source = backend.engine
        self.copies, self.lanes = copies, backend.num_lanes
        self.context = tile(backend.context, copies)
        self.engine = Engine(source.num_slices, copies * self.lanes)
        self._source, self._future = source, Future(source)
        self._window = Window()
        self._window.block = self._future.window(source.elapsed, 1, copies)
        self.engine.load(
            self._window,
            tile(source.hardware, copies),
            self.context.period_s,
            self.context.threads,
            tile(source.pods[kernels.REQUEST_MCPU], copies),
        )
        self._state = self.engine.state.copy()
        self._elapsed = source.elapsed

    def start(self, steps: int) -> None:
        """Take the simulator's present state, and the true figures of its next ``steps`` periods."""
        self._elapsed = self._source.elapsed
        self._window.block = self._future.window(self._elapsed, steps, self.copies)
        self._state[:] = tile(self._source.state, self.copies)
        self.rewind()

    def rewind(self) -> None:
        """Back to the state that `start` took."""
        self.engine.state[:] = self._state
        self.engine.elapsed = self._elapsed
        # The engine asks for its next block, which is the window from its first period on.
        self.engine._block = None
