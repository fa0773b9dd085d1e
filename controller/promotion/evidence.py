"""Evidence for a promotion: what a controller has counted of a bundle's decisions, one `Evidence` per run and bundle.

The controller counts from its own memory (`slicepilot.controller.service.evidence_thread`) and signs what it has
counted (`signed`): nothing that another process writes is counted. Ticks that the simulator replays are identified by
their SHA-256 (`Window`).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from slicepilot.configs import ConfigError
from slicepilot.controller.contracts import charge
from slicepilot.controller.contracts.modes import Level, Mode
from slicepilot.controller.contracts.reasons import MEANINGS, Reason, Severity
from slicepilot.controller.record.estimate import Estimator
from slicepilot.controller.record.ring import LATE, Records, charge_counts, fingerprint, masks_of

if TYPE_CHECKING:
    from slicepilot.controller.record.reader import SegmentReader

MAX_WINDOWS = 2880
"""A day's, with a window every 30 s; the oldest are dropped first."""
_LONGEST_US = 10_000
_OPERATOR = Reason.PAUSED.bit | Reason.ORDERED_SAFE.bit
_INFO = sum(reason.bit for reason, meaning in MEANINGS.items() if meaning.severity is Severity.INFO)
_TIMED = ("observe_ns", "infer_ns", "guard_ns", "apply_ns")


@dataclass(frozen=True)
class Window:
    """Consecutive ticks in shadow, which the simulator can replay if the records still have them.

    Attributes:
        run_id, first, last: the run, and sequence numbers in it.
        start_ns, end_ns: CLOCK_REALTIME of the first and the last tick.
        sha256: the ticks' `fingerprint`.
        description: index of the run's description in `Evidence.descriptions`.
    """

    run_id: str
    first: int
    last: int
    start_ns: int
    end_ns: int
    sha256: str
    description: int


@dataclass
class Evidence:
    """Sums over ticks in shadow, except those that an operator had paused or ordered to be safe.

    Attributes:
        decisions: for slices that were measured; ``unchanged`` and ``agreed`` of them as `GuardCriteria` has it.
        charges: ticks in shadow by what was in charge; charges_acting: ticks in canary and live, which are counted
            only here.
        trips: how often each reason of severity WARNING or SEVERE came up, by label.
        total_us: ticks by their time from observe to apply, in whole microseconds.
        runs: ticks by run.
        windows: for the simulator; descriptions: of their runs.
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
    total_us: Counter[int] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    windows: list[Window] = field(default_factory=list)
    descriptions: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._last_sequence, self._last_masks = -1, np.zeros(0, np.uint32)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Evidence:
        """The inverse of `to_json`; raises ValueError for another form."""
        return TypeAdapter(cls).validate_python(document)

    def to_json(self) -> dict[str, Any]:
        """Plain values, of which JSON makes a document."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return values | {"windows": [dataclasses.asdict(window) for window in self.windows]}

    def merge(self, other: Evidence) -> None:
        offset = len(self.descriptions)
        for each in dataclasses.fields(self):
            ours, theirs = getattr(self, each.name), getattr(other, each.name)
            if each.name not in {"windows", "first_ns", "last_ns"}:
                setattr(self, each.name, ours + theirs)
        self.windows += [
            dataclasses.replace(window, description=window.description + offset) for window in other.windows
        ]
        self.first_ns = min((ns for ns in (self.first_ns, other.first_ns) if ns is not None), default=None)
        self.last_ns = max((ns for ns in (self.last_ns, other.last_ns) if ns is not None), default=None)

    def add(self, description: dict[str, Any], records: Records) -> None:
        """Count more ticks of one run, oldest first."""
        if not len(records):
            return
        shadow = records["mode"] == Mode.SHADOW
        unasked = records["node_reasons"] & _OPERATOR == 0
        kept = shadow & unasked
        self._count_trips(records, kept)
        self.charges_acting.update(_charges(records[unasked & ~shadow]))
        counted = records[kept]
        if not len(counted):
            return
        self.charges.update(_charges(counted))
        self.ticks += len(counted)
        self.runs[description["run_id"]] += len(counted)
        self.duration_s += len(counted) * description["period_s"]
        self.late += int((counted["flags"] & LATE != 0).sum())
        first_ns, last_ns = int(counted["time_ns"].min()), int(counted["time_ns"].max())
        self.first_ns = first_ns if self.first_ns is None else min(self.first_ns, first_ns)
        self.last_ns = last_ns if self.last_ns is None else max(self.last_ns, last_ns)
        total_ns = sum(counted[stage].astype(np.int64) for stage in _TIMED)
        times, counts = np.unique(np.minimum(total_ns // 1000, _LONGEST_US), return_counts=True)
        self.total_us.update(dict(zip(times.tolist(), counts.tolist(), strict=True)))
        valid = counted["valid"][:, : counted["reasons"].shape[1]] != 0
        self.slice_ticks += valid.size
        self.invalid += int((~valid).sum())
        self._count_agreement(counted, valid)

    def add_window(self, description: dict[str, Any], records: Records, sha256: str) -> None:
        """Add ticks that the simulator may replay, all in shadow and under the same description."""
        if description not in self.descriptions:
            self.descriptions.append(description)
        (first, last), (start_ns, end_ns) = (records[field][[0, -1]].tolist() for field in ("sequence", "time_ns"))
        index = self.descriptions.index(description)
        window = Window(description["run_id"], first, last, start_ns, end_ns, sha256, index)
        self.windows = [*self.windows[1 - MAX_WINDOWS :], window]

    @property
    def safe_ratio(self) -> float:
        """Share of the ticks with the safe setting in charge, in shadow or acting, whichever is more; NaN without."""
        known = [shares["safe"] for shares in map(charge.shares, (self.charges, self.charges_acting)) if shares]
        return max(known, default=math.nan)

    def total_p99_us(self) -> float:
        """99th percentile of observe to apply; NaN without ticks, inf beyond 10 ms."""
        below = 0
        for us in sorted(self.total_us):
            below += self.total_us[us]
            if below >= 0.99 * self.ticks:
                return math.inf if us >= _LONGEST_US else us + 1.0
        return math.nan

    def trips_of(self, severity: Severity) -> dict[str, int]:
        """How often reasons of a severity came up, by label, the most frequent first."""
        return {name: n for name, n in self.trips.most_common() if MEANINGS[Reason[name.upper()]].severity is severity}

    def _count_agreement(self, records: Records, valid: npt.NDArray[np.bool_]) -> None:
        unchanged = (records["wanted"] == records["allowed"]).all(axis=1)
        reasons = records["reasons"] | records["node_reasons"][:, None]
        shaped = (reasons & ~np.uint32(_INFO) == 0) & (records["level"] == Level.NORMAL)[:, None]
        self.decisions += int(valid.sum())
        self.unchanged += int((unchanged & valid).sum())
        self.agreed += int(((unchanged | shaped) & valid).sum())

    def _count_trips(self, records: Records, kept: npt.NDArray[np.bool_]) -> None:
        """Count a reason at a tick that has it, if the tick before had not or is unknown."""
        masks = masks_of(records)
        before = np.zeros_like(masks)
        before[1:] = masks[:-1] * (np.diff(records["sequence"]) == 1)[:, None]
        if self._last_sequence + 1 == int(records["sequence"][0]) and len(self._last_masks) == masks.shape[1]:
            before[0] = self._last_masks
        self._last_sequence, self._last_masks = int(records["sequence"][-1]), masks[-1]
        risen = masks[kept] & ~before[kept]
        any_risen = int(np.bitwise_or.reduce(risen, axis=None)) if risen.size else 0
        for reason, meaning in MEANINGS.items():
            if any_risen & reason.bit and meaning.severity is not Severity.INFO:
                self.trips[reason.label] += int((risen & reason.bit != 0).sum())


def _charges(records: Records) -> dict[str, int]:
    """Ticks by what was in charge."""
    counts = charge_counts(records).tolist()
    return {each.label: counts[each] for each in charge.InCharge}


class ReplayedWindows(NamedTuple):
    """Windows with unchanged ticks in the records, and what the simulator says of them.

    Attributes:
        estimates: one per window that could be replayed (`slicepilot.controller.record.estimate`).
        missing: windows with missing or changed ticks, after the first complete window: older segments may have been
            removed.
        windows: all from the first complete window on.
    """

    estimates: list[dict[str, Any]]
    missing: int
    windows: int

    @classmethod
    def of(cls, evidence: Evidence, reader: SegmentReader) -> ReplayedWindows:
        """Read and replay all windows of some evidence."""
        estimates, missing, windows = list[dict[str, Any]](), 0, 0
        estimators: list[Estimator | None] = []
        for description in evidence.descriptions:
            try:
                estimators.append(Estimator(description))
            except ConfigError:  # hardware that was never identified
                estimators.append(None)
        for window in evidence.windows:
            records = _ticks(window, reader)
            missing += records is None and windows > 0
            windows += records is not None or windows > 0
            estimator = estimators[window.description]
            if records is not None and estimator is not None and (estimate := estimator.estimate(records)) is not None:
                estimates.append(estimate)
        return cls(estimates, missing, windows)


def _ticks(window: Window, reader: SegmentReader) -> Records | None:
    """The ticks of a window as the loop wrote them; None if the records do not have them."""
    parts: list[Records] = []
    for stretch in reader.stretches(window.start_ns, window.end_ns):
        records = stretch.records
        inside = (records["sequence"] >= window.first) & (records["sequence"] <= window.last)
        if stretch.key == window.run_id and inside.any() and (not parts or records.dtype == parts[0].dtype):
            parts.append(records[inside])
    if not parts:
        return None
    together: Records = np.concatenate(parts)
    return together if fingerprint(together) == window.sha256 else None


class EstimateEvidence(NamedTuple):
    """Sums over the estimates of a bundle in shadow (`slicepilot.controller.record.estimate`)."""

    windows: int
    promise_gain_s_per_hour: float
    carried_gain_pct: float
    worse_ratio: float

    @classmethod
    def of(cls, estimates: Iterable[dict[str, Any]]) -> EstimateEvidence:
        """NaN without any window."""
        windows = worse = 0
        lasted_s = gain_s = carried = gained = 0.0
        for estimate in estimates:
            windows += 1
            lasted_s += estimate["window_s"]
            longer_s = [_beyond_error(row["broken_s"]) for row in estimate["slices"]]
            gain_s -= sum(longer_s)
            worse += any(s > 0 for s in longer_s)
            carried += sum(row["carried_mbps"]["held"] for row in estimate["slices"])
            gained += sum(_beyond_error(row["carried_mbps"]) for row in estimate["slices"])
        if not windows:
            return cls(0, math.nan, math.nan, math.nan)
        return cls(windows, gain_s / (lasted_s / 3600), 100 * gained / carried if carried else 0.0, worse / windows)


def _beyond_error(figure: dict[str, Any]) -> float:
    """A difference that is larger than its error, else 0."""
    return float(figure["difference"]) if abs(figure["difference"]) > figure["error"] else 0.0
