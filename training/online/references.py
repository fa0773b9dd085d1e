"""Agents that a training run's policy must not break more promises than, on lanes of their own.

`slicepilot.training.online.vec_env.Sb3VecEnv` has ``copies`` of each deployment, with the same arrivals and noise. The
first copies are not the policy's: `REFERENCES` play there, so that the constraint compares like with like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.fixed import StaticOrder
from slicepilot.agents.heuristics.queue_greedy import QueueGreedy
from slicepilot.controller.guard.config import GuardConfig
from slicepilot.controller.guard.shaping import Shaping
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.encoding import Coding, KnobDecoder
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

REFERENCES = (QueueGreedy, StaticOrder)
NUM_REFERENCES = len(REFERENCES)


def with_references(coding: type[Coding], copies: int) -> type[Coding]:
    """A coding in which the first copies of each deployment do what `REFERENCES` decide, whatever the policy's action.

    Args:
        coding: of the policy's lanes.
        copies: of each deployment; lane l is a copy of lane l mod (L / copies).
    """

    class WithReferences:
        columns: ClassVar[int] = coding.columns
        actions: ClassVar[int] = coding.actions

        def __init__(self, slices: SliceSet, context: Context) -> None:
            self._own, self._rows_of = coding(slices, context), KnobDecoder(slices)
            lanes = NUM_REFERENCES * len(context.period_s) // copies
            self._theirs, self._references = slice(lanes), SideBySide([make() for make in REFERENCES])
            self._references.reset(slices, some_lanes(context, self._theirs), 0)
            self._held = Knobs.none(len(slices), lanes)
            self._shape = Shaping(GuardConfig(), slices, context)

        def encode(self, telemetry: Telemetry, knob_rows: FloatArray) -> FloatArray:
            self._telemetry = some_lanes(telemetry, self._theirs)
            return self._own.encode(telemetry, knob_rows)

        def decode(self, action: FloatArray) -> tuple[Knobs, FloatArray]:
            knobs, _ = self._own.decode(action)
            self._held = self._references.decide(self._telemetry, self._held)
            knobs.values[..., self._theirs] = self._held.values
            self._shape(knobs.values)
            return knobs, self._rows_of.encode(knobs)

    assert copies > NUM_REFERENCES
    return WithReferences


class SideBySide:
    """Combines several agents; each controls an equal part of the lanes."""

    request_mcpu: FloatArray | None = None
    name = "side by side"

    def __init__(self, agents: Sequence[Agent]) -> None:
        self.agents = agents

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start a run in every lane."""
        lanes = len(context.period_s) // len(self.agents)
        self.spans = [slice(k * lanes, (k + 1) * lanes) for k in range(len(self.agents))]
        for agent, span in zip(self.agents, self.spans, strict=True):
            agent.reset(slices, some_lanes(context, span), seed)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """Knobs (S, L) for the next control period."""
        wanted = [
            agent.decide(some_lanes(telemetry, span), Knobs(some_lanes(knobs.values, span))).values
            for agent, span in zip(self.agents, self.spans, strict=True)
        ]
        return Knobs(np.concatenate(wanted, axis=-1))


def some_lanes(value: Any, span: slice) -> Any:
    """Contiguous copies of some lanes' part of arrays (..., L) and of dataclasses that hold them."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value[..., span])
    if hasattr(value, "__dataclass_fields__"):
        parts = {name: getattr(value, name) for name in value.__dataclass_fields__}
        return replace(value, **{name: some_lanes(part, span) for name, part in parts.items()})
    return value
