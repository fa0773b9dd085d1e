"""The interface of agents: from telemetry to the knobs to set."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry


@runtime_checkable
class Agent(Protocol):
    """Decides for L lanes at once. A lane is a node: the simulator computes many lanes, a live node is a single lane.

    Attributes:
        name: as it appears in tables and on the command line.
        request_mcpu: Kubernetes CPU requests (S,) the pods are deployed with under this agent, or None for the slice
            specs' own. They fix the cgroup weights before anything runs.
    """

    name: str
    request_mcpu: FloatArray | None

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start a run and forget the previous run. ``context`` is fixed for the run and has the number of lanes."""
        ...

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """Knobs (S, L) for the next control period, from the last period's telemetry and the knobs that hold now."""
        ...


@runtime_checkable
class StochasticAgent(Protocol):
    """An agent that draws its decisions at random from a known density. The attributes describe the last decision.

    Attributes:
        wanted: float32 (L, S, 3), the draw on the axes of actions (`slicepilot.env.encoding.KnobDecoder`); it may lie
            outside of [-1, 1], what came of it does not.
        log_density: float64 (L,), natural logarithm of the density that ``wanted`` was drawn from; NaN while ``held``.
        held: whether the decision repeats an earlier draw. The density of a draw that is kept for ten periods counts in
            the first of them only, since nothing is drawn in the others.
    """

    wanted: FloatArray
    log_density: npt.NDArray[np.float64]
    held: bool


def lanes_of(telemetry: Telemetry) -> tuple[int, int]:
    """(S, L) of a measurement."""
    _, num_slices, lanes = telemetry.slices.shape
    return num_slices, lanes


def full(telemetry: Telemetry, value: float) -> FloatArray:
    """A float32 (S, L) array with the same value everywhere."""
    return np.full(lanes_of(telemetry), value, np.float32)
