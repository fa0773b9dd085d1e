"""Modes: whether decisions reach the node. Levels: how far the guard trusts what it sees."""

from __future__ import annotations

import enum


class Mode(enum.IntEnum):
    """``SHADOW`` writes nothing, ``CANARY`` acts on named slices, ``LIVE`` on all."""

    SHADOW = 0
    LIVE = 1
    CANARY = 2

    @property
    def label(self) -> str:
        """The name on the command line."""
        return self.name.lower()


MODES = {mode.label: mode for mode in Mode}


class Level(enum.IntEnum):
    """How far the guard trusts measurements and policy.

    ``NORMAL``: decisions inside the envelope. ``HOLD``: the knobs stay. ``SAFE``: the declared safe setting
    until things have been well for a while. ``LATCHED``: the same until an operator resumes.
    """

    NORMAL = 0
    HOLD = 1
    SAFE = 2
    LATCHED = 3

    @property
    def label(self) -> str:
        """The name in metrics and output."""
        return self.name.lower()
