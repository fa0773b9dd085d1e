"""Policies of other libraries as agents: what observes and acts as the Gymnasium environment's policies do."""

from __future__ import annotations

import inspect
import math
from typing import Any, Protocol

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.encoding import Coding, KnobDecoder, PlainCoding
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry


class Predictor(Protocol):
    """A policy over the environment's spaces, with the method of Stable-Baselines3's policies and algorithms.

    The other parameters of that method, ``state``, ``episode_start`` (bool (L,)) and ``deterministic``, are given to
    those that have them, and the result may be the actions alone. If it has ``observation_space`` and
    ``action_space``, they are compared with the environment's.
    """

    def predict(self, observation: FloatArray) -> Any:
        """Actions (L, S, 3) or (L, S * 3), in [-1, 1], for observations (L, S * 20) of L lanes; and a state."""
        ...


class PredictingAgent:
    """Runs a `Predictor` over L lanes, with ``deterministic=True`` if it has that parameter.

    Args:
        policy: observes and acts.
        name: as in tables.
        coding: of its observations and actions.
    """

    request_mcpu: FloatArray | None = None

    def __init__(self, policy: Predictor, name: str, coding: type[Coding] = PlainCoding) -> None:
        self.policy, self.name, self._make_coding = policy, name, coding
        parameters = inspect.signature(policy.predict).parameters
        self._options = [name for name in ("state", "episode_start", "deterministic") if name in parameters]

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start a run. Raises ConfigError for a policy that was made for another number of slices."""
        self._check("observation", len(slices), self._make_coding.columns)
        self._check("action", len(slices), self._make_coding.actions)
        self._coding, self._rows_of = self._make_coding(slices, context), KnobDecoder(slices)
        self._decided: tuple[Knobs, FloatArray] | None = None
        self._state: Any = None
        self._begins = np.ones(len(context.period_s), np.bool_)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """Knobs (S, L) for the next control period.

        Raises:
            ValueError: actions of another shape, or that are not numbers.
        """
        if self._decided is not None and knobs.same_as(self._decided[0]):
            rows = self._decided[1]  # as the environment has them, to the last bit
        else:
            rows = self._rows_of.encode(knobs)
        table = self._coding.encode(telemetry, rows)
        lanes, num_slices, _ = table.shape
        given = {"state": self._state, "episode_start": self._begins, "deterministic": True}
        answer = self.policy.predict(table.reshape(lanes, -1), **{name: given[name] for name in self._options})
        action, self._state = answer if isinstance(answer, tuple) else (answer, None)
        self._begins = np.zeros(lanes, np.bool_)
        expected = lanes, num_slices, self._make_coding.actions
        if np.size(action) != math.prod(expected):
            raise ValueError(f"policy {self.name!r}: actions of shape {np.shape(action)}; expected {expected}")
        self._decided = self._coding.decode(np.asarray(action, np.float32).reshape(expected))
        return self._decided[0]

    def _check(self, side: str, num_slices: int, width: int) -> None:
        space = getattr(self.policy, f"{side}_space", None)
        shape = getattr(space, "shape", None)
        if space is not None and (shape is None or math.prod(shape) != num_slices * width):
            raise ConfigError(
                f"policy {self.name!r}: {side} space {space}; expected {num_slices * width} numbers: "
                f"{width} for each of {num_slices} slices"
            )
