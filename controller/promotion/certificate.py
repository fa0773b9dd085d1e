"""May a bundle act? A shadow recording is held against criteria; a yes is written into the bundle, with its reasons.

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
from slicepilot.controller.contracts.reasons import MEANINGS, Reason, Severity

from .criteria import Criteria

if TYPE_CHECKING:
    from slicepilot.controller.record.sealed import SealedRecords

    from .evidence import EstimateEvidence, ShadowEvidence

FORMAT_VERSION = 1
_STRICT = ConfigDict(extra="forbid")
_HINT = "accepted: run it in shadow, then `slicepilot promote`, or --force"


@dataclass(frozen=True)
class Finding:
    """One criterion: ``sign`` says on which side of ``required`` the measured figure has to be.

    ``measured`` is null where there was nothing to measure, which meets nothing; ``why`` names the culprits.
    """

    __pydantic_config__ = _STRICT
    criterion: str
    sign: str
    required: float
    measured: float | None
    ok: bool
    why: str = ""

    @classmethod
    def least(cls, criterion: str, required: float, measured: float, why: str = "") -> Finding:
        """Met by that much or more."""
        return cls(criterion, ">=", required, _known(measured), measured >= required, why)

    @classmethod
    def most(cls, criterion: str, required: float, measured: float, why: str = "") -> Finding:
        """Met by that much or less."""
        return cls(criterion, "<=", required, _known(measured), measured <= required, why)

    def __str__(self) -> str:
        measured = "nothing measured" if self.measured is None else f"{self.measured:.6g}"
        return f"{self.criterion}: {measured}; required: {self.sign} {self.required:.6g}" + (
            f" ({self.why})" if self.why else ""
        )


@dataclass(frozen=True)
class ShadowRecording:
    """What a verdict rests on: ticks by run, times of the first and the last one, and who was in charge.

    ``missing_ticks`` were sealed by the controller after the first that is there, and are gone or changed.
    ``in_charge`` has shares of the ticks in shadow, as if the policy had acted, ``in_charge_acting`` of those in canary
    and live; null without any.
    """

    __pydantic_config__ = _STRICT
    ticks: int
    runs: dict[str, int]
    first: str | None
    last: str | None
    missing_ticks: int = 0
    in_charge: dict[str, float] | None = None
    in_charge_acting: dict[str, float] | None = None


@dataclass(frozen=True)
class PromotionDecision:
    """Every criterion with what was measured.

    Attributes:
        digest: of the bundle.
        others: ticks in the same folder that do not count: another bundle's, or not in shadow.
        unsealed: ticks that do not count since they are not the controller's, changed, told twice, or not sealed yet.
        broken: files that were left out, in part or altogether, with the reason.
    """

    digest: str
    criteria: Criteria
    findings: tuple[Finding, ...]
    recording: ShadowRecording
    others: int
    unsealed: int
    broken: dict[str, str]

    @property
    def promoted(self) -> bool:
        """Whether all criteria are met."""
        return all(finding.ok for finding in self.findings)

    @property
    def reasons(self) -> list[str]:
        """The criteria that are not met."""
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
    bundle: BundleFiles, records: SealedRecords, criteria: Criteria, estimates: Iterable[dict[str, Any]] | None = None
) -> PromotionDecision:
    """Hold all that was recorded of a bundle in shadow, and sealed by its controller, against the criteria.

    Args:
        bundle: its files.
        records: what was recorded.
        criteria: all of which have to be met.
        estimates: rows (`slicepilot.controller.record.estimate_file`) in place of those worked out from the ticks.

    Raises:
        ConfigError: not a bundle.
    """
    from slicepilot.controller.record.moments import rfc3339

    from .estimates import Estimates
    from .evidence import EstimateEvidence, ShadowEvidence

    digest = bundle.digest
    shadow, others = ShadowEvidence(), 0
    replayed, rows = Estimates(criteria.estimate.every_s), list[dict[str, Any]]()
    for stretch in records.stretches():
        theirs = stretch.description["bundle"]
        before = shadow.ticks
        if theirs is not None and theirs["digest"] == digest:
            shadow.add(stretch.description, stretch.records)
            if estimates is None:
                rows += replayed.add(stretch)
        others += len(stretch.records) - (shadow.ticks - before)
    estimate = EstimateEvidence.of(rows if estimates is None else estimates)
    missing, sealed = records.missing(digest)
    first, last = (None if at is None else rfc3339(at) for at in (shadow.first_ns, shadow.last_ns))
    charges = map(shares, (shadow.charges, shadow.charges_acting))
    recording = ShadowRecording(shadow.ticks, shadow.runs, first, last, missing, *charges)
    findings = tuple(_findings(criteria, shadow, estimate, _share(missing, sealed)))
    return PromotionDecision(digest, criteria, findings, recording, others, records.unsealed, records.broken)


def promote(bundle: BundleFiles, verdict: PromotionDecision) -> BundleFiles:
    """Write ``promotion.yaml``, replacing an older one; returns the files with it.

    Raises:
        ValueError: the verdict is no, or on other contents.
        ConfigError, OSError: it cannot be written; what was there is untouched.
    """
    from slicepilot.controller.record.moments import rfc3339

    if not verdict.promoted or verdict.digest != bundle.digest:
        raise ValueError("not promoted: the verdict is no, or the bundle has changed")
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
    """The promotion of a bundle. Errors quote nothing of it: no sums say that it is ours.

    Raises:
        ConfigError: it was never promoted, not with the contents it has now, or not by its findings.
    """
    if PROMOTION_FILE not in bundle.parts:
        raise ConfigError(f"{bundle}: never promoted; {_HINT}")
    where = f"{bundle}: {PROMOTION_FILE}"
    promotion = validate(Promotion, parse_yaml(bundle.part(PROMOTION_FILE), where), where, quote=False)
    if promotion.format_version != FORMAT_VERSION:
        raise ConfigError(f"{where}: format_version: accepted: {FORMAT_VERSION}")
    if promotion.bundle != bundle.digest:
        raise ConfigError(f"{bundle}: promoted as another one than it is now ({bundle.digest[:12]}); {_HINT}")
    if not promotion.findings or not all(finding.ok for finding in promotion.findings):
        raise ConfigError(f"{where}: findings that do not promote it; {_HINT}")
    return promotion


def _findings(
    criteria: Criteria, shadow: ShadowEvidence, estimate: EstimateEvidence, missing_ratio: float
) -> Iterator[Finding]:
    guard, budget, wanted = criteria.guard, criteria.budget, criteria.estimate
    hours = shadow.duration_s / 3600
    severe, warnings = (_names(shadow, severity) for severity in (Severity.SEVERE, Severity.WARNING))
    yield Finding.least("shadow.min_duration_s", criteria.shadow.min_duration_s, shadow.duration_s)
    yield Finding.least("shadow.min_ticks", criteria.shadow.min_ticks, shadow.ticks)
    yield Finding.most("records.max_missing_ratio", criteria.records.max_missing_ratio, missing_ratio)
    unchanged, agreed = (_share(part, shadow.decisions) for part in (shadow.unchanged, shadow.agreed))
    yield Finding.least("guard.min_unchanged_ratio", guard.min_unchanged_ratio, unchanged)
    yield Finding.least("guard.min_agreement_ratio", guard.min_agreement_ratio, agreed)
    trips = shadow.trips_of(Severity.SEVERE) if shadow.ticks else math.nan
    yield Finding.most("guard.max_severe", guard.max_severe, trips, severe)
    per_hour = _share(shadow.trips_of(Severity.WARNING), hours)
    yield Finding.most("guard.max_warning_per_hour", guard.max_warning_per_hour, per_hour, warnings)
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


def _names(shadow: ShadowEvidence, severity: Severity) -> str:
    counts = [
        f"{name} {count}"
        for name, count in shadow.trips.most_common()
        if MEANINGS[Reason[name.upper()]].severity is severity
    ]
    return ", ".join(counts)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _known(figure: float) -> float | None:
    return float(figure) if math.isfinite(figure) else None
