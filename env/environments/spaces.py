"""Observation and action spaces of the environments, and the table (S, A) that an action of each kind encodes."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.env.arrays import FloatArray
from slicepilot.env.encoding import NUM_FEATURES
from slicepilot.env.knobs import NUM_KNOBS

FlatActions = bool | Literal["multidiscrete"]
LEVELS = 11
"""Levels of each knob in a MultiDiscrete action, from -1 to 1 in equal steps: the middle is 0, the last is no limit."""


def observation_space(num_slices: int, columns: int = NUM_FEATURES) -> gym.spaces.Box:
    """The encoder's table (S, D) row by row: a vector (S * D,) in [-1, 1], which every algorithm's library takes."""
    return gym.spaces.Box(-1.0, 1.0, (num_slices * columns,), np.float32)


class Actions:
    """What actions look like: the encoded knobs of each slice as a table, as a vector or as levels.

    `slicepilot.env.encoding.KnobDecoder` gives the meaning of the table (S, A), in [-1, 1].

    Attributes:
        space: Box (S, A); with ``flat`` True Box (S * A,), row by row; with "multidiscrete" as many numbers of levels,
            0 to `LEVELS` - 1.

    Raises:
        ConfigError: another value of ``flat``.
    """

    def __init__(self, num_slices: int, columns: int = NUM_KNOBS, flat: FlatActions = False) -> None:
        if flat not in (True, False, "multidiscrete"):
            raise ConfigError(f"flat_actions = {flat!r}: expected True, False or 'multidiscrete'")
        self._shape, self.flat = (num_slices, columns), flat
        size = num_slices * columns
        self.space: gym.Space[Any]
        if flat == "multidiscrete":
            self.space = gym.spaces.MultiDiscrete(np.full(size, LEVELS))
        else:
            self.space = gym.spaces.Box(-1.0, 1.0, (size,) if flat else self._shape, np.float32)

    def table(self, action: Any) -> FloatArray:
        """An action of ``space``, or a batch (L, ...) of actions, as a table (S, A) or (L, S, A).

        Raises:
            ValueError: a flat action of the wrong shape; `KnobDecoder.decode` refuses others.
        """
        if not self.flat:
            return action
        flat = np.asarray(action, np.float32)
        size = self._shape[0] * self._shape[1]
        if not flat.ndim or flat.shape[-1] != size:
            raise ValueError(f"action: shape {flat.shape}: expected ({size},) or a batch of it")
        table = flat.reshape(*flat.shape[:-1], *self._shape)
        return table * np.float32(2 / (LEVELS - 1)) - np.float32(1) if self.flat == "multidiscrete" else table
