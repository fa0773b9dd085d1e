"""What recordings of a bundle in shadow say about it, in figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.controller.contracts import charge
from slicepilot.controller.contracts.modes import Level, Mode
from slicepilot.controller.contracts.reasons import MEANINGS, Reason, Severity
from slicepilot.controller.record.columns import Records
from slicepilot.controller.record.ring import LATE

_LONGEST_US = 1_000_000
_OPERATOR = Reason.PAUSED.bit | Reason.ORDERED_SAFE.bit


def _mask(severity: Severity) -> int:
    return sum(reason.bit for reason, meaning in MEANINGS.items() if meaning.severity is severity)


@dataclass
class ShadowEvidence:
    """Sums over ticks in shadow. Ticks that an operator had paused, or ordered to be safe, do not count.

    Attributes:
        decisions: for slices that were measured; ``unchanged`` and ``agreed`` of them as `GuardCriteria` has it.
        charges: ticks in shadow by who was in charge; charges_acting: ticks in canary and live, which count for
            nothing else.
        trips: how often each reason of severity WARNING or SEVERE came up, by name.
    """

    ticks: int = 0
    duration_s: float = 0.0
    decisions: int = 0
    unchanged: int = 0
    agreed: int = 0
    late: int = 0
    invalid: int = 0
    slice_ticks: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    charges: Counter[str] = field(default_factory=Counter)
    charges_acting: Counter[str] = field(default_factory=Counter)
    trips: Counter[str] = field(default_factory=Counter)
    runs: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._total_us = np.zeros(_LONGEST_US + 1, np.int64)
        self._last: tuple[str, Any] | None = None

    def add(self, description: dict[str, Any], records: Records) -> None:
        """Take more ticks, oldest first within a run."""
        shadow = records["mode"] == Mode.SHADOW
        unasked = records["node_reasons"] & _OPERATOR == 0
        kept = shadow & unasked
        if not len(records):
            return
        run_id, count = description["run_id"], len(description["slice_set"]["slices"])
        self._count_trips(run_id, records, kept)
        _count_charges(records[unasked & ~shadow], self.charges_acting)
        counted = records[kept]
        _count_charges(counted, self.charges)
        if not len(counted):
            return
        self.ticks += len(counted)
        self.runs[run_id] = self.runs.get(run_id, 0) + len(counted)
        self.duration_s += len(counted) * description["period_s"]
        self.late += int((counted["flags"] & LATE != 0).sum())
        first_ns, last_ns = int(counted["time_ns"].min()), int(counted["time_ns"].max())
        self.first_ns = first_ns if self.first_ns is None else min(self.first_ns, first_ns)
        self.last_ns = last_ns if self.last_ns is None else max(self.last_ns, last_ns)
        total_ns = sum(counted[stage].astype(np.int64) for stage in ("observe_ns", "infer_ns", "guard_ns", "apply_ns"))
        self._total_us += np.bincount(np.minimum(total_ns // 1000, _LONGEST_US), minlength=_LONGEST_US + 1)
        valid = counted["valid"][:, :count] != 0
        self.slice_ticks += valid.size
        self.invalid += int((~valid).sum())
        self._count_agreement(counted, valid)

    @property
    def safe_ratio(self) -> float:
        """Share of the ticks with the safe setting in charge, in shadow or acting, whichever is more; NaN without."""
        known = [shares["safe"] for shares in map(charge.shares, (self.charges, self.charges_acting)) if shares]
        return max(known, default=math.nan)

    def total_p99_us(self) -> float:
        """99th percentile of observe to apply; NaN without ticks, inf beyond a second."""
        if not self.ticks:
            return math.nan
        bucket = int(np.searchsorted(np.cumsum(self._total_us), 0.99 * self.ticks))
        return math.inf if bucket >= _LONGEST_US else float(bucket + 1)

    def trips_of(self, severity: Severity) -> int:
        """How often reasons of a severity came up."""
        return sum(count for name, count in self.trips.items() if MEANINGS[Reason[name.upper()]].severity is severity)

    def _count_agreement(self, records: Records, valid: npt.NDArray[np.bool_]) -> None:
        unchanged = (records["wanted"] == records["allowed"]).all(axis=1)
        reasons = records["reasons"] | records["node_reasons"][:, None]
        shaped = (reasons & ~np.uint32(_mask(Severity.INFO)) == 0) & (records["level"] == Level.NORMAL)[:, None]
        self.decisions += int(valid.sum())
        self.unchanged += int((unchanged & valid).sum())
        self.agreed += int(((unchanged | shaped) & valid).sum())

    def _count_trips(self, run_id: str, records: Records, kept: npt.NDArray[np.bool_]) -> None:
        """A reason comes up at a tick that has it, after one that had not, or that is not known."""
        masks = np.concatenate([records["node_reasons"][:, None], records["reasons"]], axis=1)
        before = np.zeros_like(masks)
        before[1:] = masks[:-1] * (np.diff(records["sequence"]) == 1)[:, None]
        if self._last is not None and len(self._last[1]) == masks.shape[1] + 1 and self._last[0] == run_id:
            sequence, *last = self._last[1]
            before[0] = last if sequence + 1 == int(records["sequence"][0]) else 0
        self._last = run_id, [int(records["sequence"][-1]), *masks[-1].tolist()]
        risen = masks[kept] & ~before[kept]
        for reason, meaning in MEANINGS.items():
            if meaning.severity is not Severity.INFO and (count := int((risen & reason.bit != 0).sum())):
                self.trips[reason.label] += count


def _count_charges(records: Records, counts: Counter[str]) -> None:
    masks = np.column_stack([records["reasons"], records["node_reasons"]])
    found = np.bincount(charge.who(records["level"], records["flags"] & LATE != 0, masks), minlength=3)
    counts.update({one.label: int(found[one]) for one in charge.InCharge})


@dataclass
class EstimateEvidence:
    """Sums over the estimates of a bundle in shadow: a row per window and slice."""

    windows: int
    promise_gain_s_per_hour: float
    carried_gain_pct: float
    worse_ratio: float

    @classmethod
    def of(cls, rows: Iterable[dict[str, Any]]) -> EstimateEvidence:
        """NaN without any window."""
        lasting_s: dict[tuple[str, int], float] = {}
        worse: set[tuple[str, int]] = set()
        gain_s = carried = gained = 0.0
        for row in rows:
            window = row["run_id"], row["start_ns"]
            lasting_s[window] = row["window_s"]
            longer_s = _told(row, "broken_s")
            gain_s -= longer_s
            carried += row["carried_mbps_held"]
            gained += _told(row, "carried_mbps")
            if longer_s > 0:
                worse.add(window)
        if not lasting_s:
            return cls(0, math.nan, math.nan, math.nan)
        hours = sum(lasting_s.values()) / 3600
        return cls(
            len(lasting_s), gain_s / hours, 100 * gained / carried if carried else 0.0, len(worse) / len(lasting_s)
        )


def _told(row: dict[str, Any], quantity: str) -> float:
    """A difference that is larger than its error, else 0."""
    difference = float(row[f"{quantity}_difference"])
    return difference if abs(difference) > row[f"{quantity}_error"] else 0.0
