"""Decides whether a bundle may act: compares what its controller has counted with criteria, and writes a certificate.

``promotion.yaml`` names the contents it was given for (`slicepilot.agents.learned.files.BundleFiles.digest`): a bundle
that was changed or trained anew since is not promoted any more.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
import platform
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ConfigDict

from slicepilot.agents.learned.files import PROMOTION_FILE, BundleFiles
from slicepilot.configs import ConfigError, validate
from slicepilot.configs.limited_yaml import parse_yaml
from slicepilot.controller.contracts.charge import shares
from slicepilot.controller.contracts.reasons import Severity

from .criteria import Criteria

if TYPE_CHECKING:
    from slicepilot.controller.record.reader import SegmentReader

    from .evidence import EstimateEvidence, Evidence
    from .signed import EvidenceFolder

FORMAT_VERSION = 2
_STRICT = ConfigDict(extra="forbid")
_HINT = "run it in shadow, then `slicepilot promote` it; or use --force"


@dataclass(frozen=True)
class Finding:
    """A criterion: ``sign`` is the required relation of the measured figure to ``required``.

    ``measured`` is null where there was nothing to measure, which meets no criterion; ``why`` has details.
    """

    __pydantic_config__ = _STRICT
    criterion: str
    sign: str
    required: float
    measured: float | None
    ok: bool
    why: str = ""

    @classmethod
    def least(cls, criterion: str, required: float, measured: float) -> Finding:
        """Met by at least the required figure."""
        return cls(criterion, ">=", required, _known(measured), measured >= required)

    @classmethod
    def most(cls, criterion: str, required: float, measured: float, why: str = "") -> Finding:
        """Met by at most the required figure."""
        return cls(criterion, "<=", required, _known(measured), measured <= required, why)

    def __str__(self) -> str:
        measured = "nothing measured" if self.measured is None else f"{self.measured:.6g}"
        why = f" ({self.why})" if self.why else ""
        return f"{self.criterion}: {measured}; required: {self.sign} {self.required:.6g}{why}"


@dataclass(frozen=True)
class ShadowRecording:
    """The basis of a decision: ticks by run, times of the first and the last, and what was in charge.

    Of the ``windows`` for the simulator, ``missing_windows`` are not in the records, or were changed there.
    ``in_charge`` has shares of the ticks in shadow, as if the policy had acted, ``in_charge_acting`` of those in canary
    and live; null without any.
    """

    __pydantic_config__ = _STRICT
    ticks: int
    runs: dict[str, int]
    first: str | None
    last: str | None
    windows: int = 0
    missing_windows: int = 0
    in_charge: dict[str, float] | None = None
    in_charge_acting: dict[str, float] | None = None


@dataclass(frozen=True)
class PromotionDecision:
    """Every criterion with what was measured.

    Attributes:
        digest: of the bundle.
        left_out: files that do not count, with the reason.
    """

    digest: str
    criteria: Criteria
    findings: tuple[Finding, ...]
    recording: ShadowRecording
    left_out: dict[str, str]

    @property
    def promoted(self) -> bool:
        return all(finding.ok for finding in self.findings)

    @property
    def reasons(self) -> list[str]:
        return [str(finding) for finding in self.findings if not finding.ok]


@dataclass(frozen=True)
class Promotion:
    """Contents of ``promotion.yaml``."""

    __pydantic_config__ = _STRICT
    format_version: int
    bundle: str
    time: str
    criteria: Criteria
    findings: tuple[Finding, ...]
    recording: ShadowRecording
    versions: dict[str, str]


def judge(
    bundle: BundleFiles,
    folder: EvidenceFolder,
    records: SegmentReader,
    criteria: Criteria,
    estimates: Iterable[dict[str, Any]] | None = None,
) -> PromotionDecision:
    """Compare what a controller has counted of a bundle in shadow with the criteria.

    Args:
        bundle, folder: its files, and the controller's evidence.
        records: of the same controller, with the ticks that the simulator replays.
        criteria: all have to be met.
        estimates: replace the simulator's.

    Raises:
        ConfigError: not a bundle.
    """
    from slicepilot.controller.record.moments import rfc3339

    from .evidence import EstimateEvidence, ReplayedWindows

    shadow, left_out = folder.load(bundle.digest)
    replayed = ReplayedWindows.of(shadow, records)
    estimate = EstimateEvidence.of(replayed.estimates if estimates is None else estimates)
    first, last = (None if at is None else rfc3339(at) for at in (shadow.first_ns, shadow.last_ns))
    charges = map(shares, (shadow.charges, shadow.charges_acting))
    recording = ShadowRecording(
        shadow.ticks, dict(shadow.runs), first, last, replayed.windows, replayed.missing, *charges
    )
    missing = replayed.missing / replayed.windows if replayed.windows else 0.0
    findings = tuple(_findings(criteria, shadow, estimate, missing))
    return PromotionDecision(bundle.digest, criteria, findings, recording, left_out | records.broken)


def promote(bundle: BundleFiles, verdict: PromotionDecision) -> BundleFiles:
    """Write or replace ``promotion.yaml``; returns the files with it.

    Raises:
        ValueError: the decision is no, or about other contents.
        ConfigError, OSError: it cannot be written; the old file is unchanged.
    """
    from slicepilot.controller.record.moments import rfc3339

    if not verdict.promoted or verdict.digest != bundle.digest:
        raise ValueError("not promoted: a criterion is not met, or the bundle has changed")
    versions = {"python": platform.python_version(), "slicepilot": importlib.metadata.version("slicepilot")}
    promotion = Promotion(
        FORMAT_VERSION,
        verdict.digest,
        rfc3339(time.time_ns()),
        verdict.criteria,
        verdict.findings,
        verdict.recording,
        versions,
    )
    plain = dataclasses.asdict(promotion) | {"findings": [dataclasses.asdict(f) for f in promotion.findings]}
    return bundle.write(PROMOTION_FILE, yaml.safe_dump(plain, sort_keys=False).encode())


def check(bundle: BundleFiles) -> Promotion:
    """The promotion of a bundle. Errors do not quote it, because no checksum covers it.

    Raises:
        ConfigError: it was never promoted, not with the contents it has now, or not by its findings.
    """
    if PROMOTION_FILE not in bundle.parts:
        raise ConfigError(f"{bundle}: never promoted; {_HINT}")
    where = f"{bundle}: {PROMOTION_FILE}"
    promotion = validate(Promotion, parse_yaml(bundle.part(PROMOTION_FILE), where), where, quote=False)
    if promotion.format_version != FORMAT_VERSION:
        raise ConfigError(f"{where}: format_version: expected {FORMAT_VERSION}")
    if promotion.bundle != bundle.digest:
        raise ConfigError(f"{bundle}: promoted with other contents than it has now ({bundle.digest[:12]}); {_HINT}")
    if not promotion.findings or not all(finding.ok for finding in promotion.findings):
        raise ConfigError(f"{where}: findings that do not promote it; {_HINT}")
    return promotion


def _findings(
    criteria: Criteria, shadow: Evidence, estimate: EstimateEvidence, missing_ratio: float
) -> Iterator[Finding]:
    guard, budget, wanted = criteria.guard, criteria.budget, criteria.estimate
    hours = shadow.duration_s / 3600
    severe, warnings = (shadow.trips_of(severity) for severity in (Severity.SEVERE, Severity.WARNING))
    yield Finding.least("shadow.min_duration_s", criteria.shadow.min_duration_s, shadow.duration_s)
    yield Finding.least("shadow.min_ticks", criteria.shadow.min_ticks, shadow.ticks)
    yield Finding.most("records.max_missing_ratio", criteria.records.max_missing_ratio, missing_ratio)
    unchanged, agreed = (_share(part, shadow.decisions) for part in (shadow.unchanged, shadow.agreed))
    yield Finding.least("guard.min_unchanged_ratio", guard.min_unchanged_ratio, unchanged)
    yield Finding.least("guard.min_agreement_ratio", guard.min_agreement_ratio, agreed)
    trips = sum(severe.values()) if shadow.ticks else math.nan
    yield Finding.most("guard.max_severe", guard.max_severe, trips, _counted(severe))
    per_hour = _share(sum(warnings.values()), hours)
    yield Finding.most("guard.max_warning_per_hour", guard.max_warning_per_hour, per_hour, _counted(warnings))
    yield Finding.most("guard.max_safe_ratio", guard.max_safe_ratio, shadow.safe_ratio)
    yield Finding.most("budget.max_late_ratio", budget.max_late_ratio, _share(shadow.late, shadow.ticks))
    yield Finding.most("budget.max_total_p99_us", budget.max_total_p99_us, shadow.total_p99_us())
    invalid = _share(shadow.invalid, shadow.slice_ticks)
    yield Finding.most("telemetry.max_invalid_ratio", criteria.telemetry.max_invalid_ratio, invalid)
    yield Finding.least("estimate.min_windows", wanted.min_windows, estimate.windows)
    gain = estimate.promise_gain_s_per_hour
    yield Finding.least("estimate.min_promise_gain_s_per_hour", wanted.min_promise_gain_s_per_hour, gain)
    yield Finding.least("estimate.min_carried_gain_pct", wanted.min_carried_gain_pct, estimate.carried_gain_pct)
    yield Finding.most("estimate.max_worse_ratio", wanted.max_worse_ratio, estimate.worse_ratio)


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _known(figure: float) -> float | None:
    return float(figure) if math.isfinite(figure) else None
