"""The last word before the kernel: knobs inside their declared bounds, or the ones that hold."""

from __future__ import annotations

import math

import numpy as np

from ..env.knobs import Knobs
from ..env.slices import NICE_MAX, NICE_MIN, FloatArray, SliceSet

# A knob at its bound comes back from a policy's logarithmic axis within this share of it.
ROUNDING = 1e-5


class Bounds:
    """Keeps each slice's knobs inside `KnobBounds`; "none" always is (and 0 of an egress rate, which paces nothing).

    Attributes:
        clamped, held: how often knobs were moved to a bound, and how often what holds was kept instead.
    """

    def __init__(self, slices: SliceSet) -> None:
        nice = np.asarray([[s.bounds.nice for s in slices.slices]], np.float32).clip(NICE_MIN, NICE_MAX)[0]
        self._low, self._high = (
            (slices.bound("cpu_limit_mcpu", side), nice[:, side, None], slices.bound("egress_mbps", side))
            for side in (0, 1)
        )
        self._ranges = [
            [(one - ROUNDING * abs(one), other + ROUNDING * abs(other)) for one, other in zip(*ends, strict=True)]
            for ends in zip(map(_plain, self._low), map(_plain, self._high), strict=True)
        ]
        self.clamped = 0
        self.held = 0

    def check(self, wanted: Knobs, held: Knobs) -> Knobs:
        """``wanted`` itself if it is inside, a copy moved to the nearest bounds, or ``held`` if it has no number there.

        All arrays (S, 1).
        """
        return wanted if self.allows(wanted) else self._clamp(wanted, held)

    def allows(self, knobs: Knobs) -> bool:
        """Whether knobs are inside."""
        limits, nices, rates = self._ranges
        return (
            _inside(knobs.cpu_limit_mcpu, limits, (math.inf,))
            and _inside(knobs.egress_mbps, rates, (math.inf, 0.0))
            and _whole_inside(knobs.nice, nices)
        )

    def _clamp(self, wanted: Knobs, held: Knobs) -> Knobs:
        values = (wanted.cpu_limit_mcpu, wanted.nice, wanted.egress_mbps)
        if any(np.isnan(value).any() for value in values) or not np.isfinite(wanted.nice).all():
            self.held += 1
            return held
        limit, nice, rate = (
            np.where(value == np.inf, value, value.clip(low, high))
            for value, low, high in zip(values, self._low, self._high, strict=True)
        )
        rate = np.where(wanted.egress_mbps == 0, wanted.egress_mbps, rate)
        self.clamped += 1
        return Knobs(limit, np.rint(nice), rate, wanted.nice_scope)


def _plain(values: FloatArray) -> list[float]:
    """Python's numbers: for a few slices they are faster than arrays."""
    numbers: list[float] = values.ravel().tolist()
    return numbers


def _inside(values: FloatArray, ranges: list[tuple[float, float]], none: tuple[float, ...]) -> bool:
    """Whether every value is in its range or means "none"."""
    for value, (low, high) in zip(_plain(values), ranges, strict=True):  # noqa: SIM110 (a generator costs on this path)
        if not (low <= value <= high or value in none):
            return False
    return True


def _whole_inside(values: FloatArray, ranges: list[tuple[float, float]]) -> bool:
    """Whether every value is a whole number in its range."""
    for value, (low, high) in zip(_plain(values), ranges, strict=True):
        if not (low <= value <= high and value.is_integer()):
            return False
    return True
