"""Estimates what a shadow run's decisions would have changed, by the identified simulator, with the possible error.

The last two seconds are simulated twice: with the actual knobs, and with those that the guard allowed. Both runs have
the measured arrivals. The error of the difference is the sum of two parts: the first run's deviation from the
measurements, and the median error of the identification on schedules that it was not fitted to (`slicepilot testbed
identify`, ``fit`` in the hardware file). A smaller difference means nothing.

The model does not include how loads react, nor that the policy would have seen the effect of its knobs.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError, load, validate
from slicepilot.controller.contracts.modes import Mode
from slicepilot.env.arrays import FloatArray
from slicepilot.env.slices import SliceSet

from .ring import LATE, Records

if TYPE_CHECKING:
    from .replay import Replay

INTERVAL_S, WINDOW_S, SETTLE_S = 10.0, 2.0, 0.4
MIN_TICKS = 20
MAX_LOST_RATIO = 0.05
MIN_CARRIED_MBPS = 0.5
"""Below this rate the p99 delay of a slice is meaningless."""
Array = npt.NDArray[np.float64]


def window_ticks(period_s: float) -> int:
    """Number of ticks that are replayed for an estimate."""
    return max(MIN_TICKS, round(WINDOW_S / period_s))


class Estimator:
    """Estimates from records as they come.

    Args:
        description: of the run; hardware, slices and period are taken from it.
        interval_s: time between estimates, at least a window.

    Raises:
        ConfigError: the hardware is unknown, or was not identified, so that its errors are unknown.
    """

    def __init__(self, description: dict[str, Any], interval_s: float = INTERVAL_S) -> None:
        from slicepilot.env.simulator.hardware import HardwareFile

        self.description = description
        self._slices = validate(SliceSet, description["slice_set"], "description: slice_set")
        period_s = description["period_s"]
        self._ticks = window_ticks(period_s)
        self._settle = min(round(SETTLE_S / period_s), self._ticks // 4) + 1
        self._interval_ns = round(1e9 * max(interval_s, self._ticks * period_s))
        name = description["hardware"]
        file = load("hardware", name, HardwareFile)
        missing = [key for key in ("throughput_median_pct", "delay_p99_median_factor") if key not in file.fit]
        if missing:
            raise ConfigError(f"hardware {name!r}: fit.{missing[0]} is missing; identify it first")
        self.model: dict[str, Any] = {"hardware": name, **file.fit}
        self._fit, self._hardware = file.fit, file.hardware
        self._recent: deque[Records] = deque()
        self._due_ns: int | None = None
        self._replay: Replay | None = None

    def add(self, records: Records) -> dict[str, Any] | None:
        """Add ticks, oldest first; returns an estimate as JSON values if it is due and possible.

        None for ticks that acted on all slices, whose decisions were applied, and for a window with gaps.

        ``slices`` has, for each slice that was measured throughout, ``carried_mbps``, ``delay_p99_us`` and ``broken_s``
        (time in which its promise was broken, of ``window_s``): each ``held``, ``policy``, ``difference``, ``error``,
        ``measured`` and whether the difference is ``distinguishable``; a delay is null where little was carried.
        """
        if not len(records):
            return None
        self._recent.append(records[-self._ticks :])
        while sum(map(len, self._recent)) - len(self._recent[0]) >= self._ticks:
            self._recent.popleft()
        now_ns = int(records["monotonic_ns"][-1])
        if self._due_ns is None:
            self._due_ns = now_ns + round(1e9 * self._ticks * self.description["period_s"])
            return None
        if now_ns < self._due_ns:
            return None
        self._due_ns = now_ns + self._interval_ns
        return self.estimate(np.concatenate(self._recent)[-self._ticks :])

    def _usable(self, window: Records) -> bool:
        if len(window) < self._ticks or (window["mode"] == Mode.LIVE).any():
            return False
        if (window["description"] != window["description"][0]).any():
            return False
        passed = int(window["sequence"][-1]) - int(window["sequence"][0]) + 1
        missed = int(window["missed"][-1]) - int(window["missed"][0])
        return passed + missed - len(window) <= MAX_LOST_RATIO * len(window)

    def estimate(self, window: Records) -> dict[str, Any] | None:
        """An estimate from `window_ticks` ticks, as `add` returns it; None where they cannot be replayed."""
        if not self._usable(window):
            return None
        if self._replay is None:
            from .replay import Replay

            self._replay = Replay(self.description, self._slices, self._hardware)
        knobs = np.stack([window["applied"], _in_time(window)], axis=-1)
        played = self._replay.play(window["slices"], knobs, int(window["sequence"][0]))
        measured = window["slices"][..., None]
        every = np.concatenate([played, measured], axis=-1)
        carried, delay, broken = self._replay.figures(every, self._settle, self._fit)
        offered = window["slices"][self._settle :, 0].mean(axis=0)
        valid: npt.NDArray[np.bool_] = np.all(window["valid"][:, : len(self._slices)] != 0, axis=0)
        period_s, bundle = self.description["period_s"], self.description["bundle"]
        return {
            "run_id": self.description["run_id"],
            "bundle": bundle and bundle["digest"],
            "mode": "shadow" if (window["mode"] == Mode.SHADOW).all() else "canary",
            "start_ns": int(window["time_ns"][self._settle]),
            "end_ns": int(window["time_ns"][-1]),
            "window_s": period_s * (len(window) - self._settle),
            "model": self.model,
            "slices": [
                self._slice(name, float(offered[s]), carried[s], delay[s], broken[s])
                for s, name in enumerate(self._slices.names)
                if valid[s]
            ],
        }

    def _slice(self, name: str, offered_mbps: float, carried: Array, delay: Array, broken: Array) -> dict[str, Any]:
        """Figures of a slice: held, policy, measured; ``broken`` also for an optimistic and a pessimistic model."""
        throughput_ratio = self._fit["throughput_median_pct"] / 100
        carried_error = abs(carried[0] - carried[2]) + throughput_ratio * offered_mbps
        # The model's error factor, and its deviation here.
        delay_error = abs(delay[0] - delay[2]) + (self._fit["delay_p99_median_factor"] - 1) * min(delay[0], delay[1])
        measurable = bool((carried > MIN_CARRIED_MBPS).all() and (delay > 0).all())
        change = broken[1] - broken[0]
        other_changes = np.abs(broken[4::2] - broken[3::2] - change)
        broken_error = max(abs(broken[0] - broken[2]), float(other_changes.max()))
        return {
            "slice": name,
            "offered_mbps": offered_mbps,
            "carried_mbps": _difference(carried, carried_error),
            "delay_p99_us": _difference(delay, delay_error) if measurable else None,
            "broken_s": _difference(broken, broken_error),
        }


def _difference(figures: Array, error: float) -> dict[str, Any]:
    held, policy, measured = (float(value) for value in figures[:3])
    return {
        "held": held,
        "policy": policy,
        "difference": policy - held,
        "error": float(error),
        "measured": measured,
        "distinguishable": bool(abs(policy - held) > error),
    }


def _in_time(window: Records) -> FloatArray:
    """Knobs that would have been applied (N, 3, S), without late decisions."""
    in_time = np.equal(window["flags"] & LATE, 0)
    last = np.maximum.accumulate(np.where(in_time, np.arange(len(window)), -1))
    allowed: FloatArray = window["allowed"][last]
    held: FloatArray = window["applied"]
    return np.where(last[:, None, None] < 0, held, allowed)  # before the first decision in time
