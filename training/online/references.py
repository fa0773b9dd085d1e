"""Agents that a training run's policy must not break more promises than, on lanes of their own.

`slicepilot.training.online.vec_env.Sb3VecEnv` has ``copies`` of each deployment, with the same arrivals and noise. The
first copies are not the policy's: `REFERENCES` play there, so that the constraint compares like with like.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from slicepilot.agents.heuristics.queue_greedy import QueueGreedy
from slicepilot.env.arrays import BoolArray, FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.encoding import KnobDecoder
from slicepilot.env.environments.vector_env import Coding
from slicepilot.env.knobs import NICE, Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

HIGHEST, LOWEST = -10.0, 9.0  # 19 levels apart: the CPU weights of the first and the last are as 69 to 1


class StaticOrder:
    """No limits, and nice levels spread evenly over the slices that are there, in the order of their weights."""

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Take over the weights."""
        self._weight = context.promises.weight
        self._bounds = slices.bound("nice", 0), slices.bound("nice", 1)
        self._valid: BoolArray = np.zeros(self._weight.shape, np.bool_)
        self._knobs = Knobs.none(*self._weight.shape)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The same knobs until a slice comes or goes."""
        if not np.array_equal(telemetry.valid, self._valid):
            self._valid = telemetry.valid.copy()
            rank = (-self._weight * self._valid).argsort(axis=0, kind="stable").argsort(axis=0)
            last = np.maximum(self._valid.sum(axis=0) - 1, 1)
            nice = HIGHEST + (LOWEST - HIGHEST) * np.minimum(rank / last, 1.0)
            self._knobs = self._knobs.copy()
            self._knobs.values[NICE] = np.clip(np.rint(nice), *self._bounds)
        return self._knobs


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
            inputs = len(context.period_s) // copies
            self._spans = [slice(k * inputs, (k + 1) * inputs) for k in range(NUM_REFERENCES)]
            self._agents = [make() for make in REFERENCES]
            for agent, span in zip(self._agents, self._spans, strict=True):
                agent.reset(slices, _part(context, span), 0)
            self._held = [Knobs.none(len(slices), inputs) for _ in REFERENCES]

        def encode(self, telemetry: Telemetry, knob_rows: FloatArray) -> FloatArray:
            self._telemetry = [_part(telemetry, span) for span in self._spans]
            return self._own.encode(telemetry, knob_rows)

        def decode(self, action: FloatArray) -> tuple[Knobs, FloatArray]:
            knobs, rows = self._own.decode(action)
            for k, (agent, span) in enumerate(zip(self._agents, self._spans, strict=True)):
                self._held[k] = wanted = agent.decide(self._telemetry[k], self._held[k])
                knobs.values[..., span] = wanted.values
                rows[..., span] = self._rows_of.encode(wanted)
            return knobs, rows

    assert copies > NUM_REFERENCES
    return WithReferences


def _part(value: Any, span: slice) -> Any:
    """Contiguous copies of some lanes' part of arrays (..., L) and of dataclasses that hold them."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value[..., span])
    if hasattr(value, "__dataclass_fields__"):
        parts = {name: getattr(value, name) for name in value.__dataclass_fields__}
        return replace(value, **{name: _part(part, span) for name, part in parts.items()})
    return value
