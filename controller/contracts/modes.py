"""Modes: whether decisions reach the node. Levels: how far the guard trusts what it sees."""

from __future__ import annotations

import enum


class Labelled(enum.IntEnum):
    """Members with a name for the command line, JSON, records and metrics, such as ``sla_floor``."""

    @property
    def label(self) -> str:
        return self.name.lower()


class Mode(Labelled):
    """``SHADOW`` writes nothing, ``CANARY`` acts on named slices, ``LIVE`` on all."""

    SHADOW = 0
    LIVE = 1
    CANARY = 2


MODES = {mode.label: mode for mode in Mode}


class Level(Labelled):
    """How far the guard trusts measurements and policy.

    ``NORMAL``: decisions inside the envelope. ``HOLD``: the knobs stay. ``SAFE``: the declared safe setting
    until things have been well for a while. ``LATCHED``: the same until an operator resumes.
    """

    NORMAL = 0
    HOLD = 1
    SAFE = 2
    LATCHED = 3
