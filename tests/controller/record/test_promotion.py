"""A bundle is promoted by what it did in shadow, criterion by criterion, and only with unchanged contents."""

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from slicepilot.agents.learned import signature
from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.agents.learned.files import BundleFiles
from slicepilot.configs import ConfigError
from slicepilot.controller.contracts.modes import Level, Mode
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.promotion import certificate as promotion
from slicepilot.controller.promotion.certificate import PromotionDecision
from slicepilot.controller.promotion.criteria import Criteria
from slicepilot.controller.promotion.signed import FOLDER, EvidenceFolder
from slicepilot.controller.record.reader import SegmentReader
from slicepilot.controller.record.ring import LATE, Records
from slicepilot.controller.record.segments import SegmentWriter
from slicepilot.controller.service.loaded_policy import load_bundle

from .conftest import count, description, ticks

COUNT = 4000
CRITERIA = """
shadow: {min_duration_s: 15, min_ticks: 3000}
guard: {min_unchanged_ratio: 0.5, min_agreement_ratio: 0.99, max_severe: 0, max_warning_per_hour: 200}
budget: {max_late_ratio: 0.001, max_total_p99_us: 500}
telemetry: {max_invalid_ratio: 0.01}
estimate: {min_windows: 2, min_promise_gain_s_per_hour: 0, min_carried_gain_pct: -2, max_worse_ratio: 0.1}
"""


@pytest.fixture
def criteria(tmp_path: Path) -> Criteria:
    path = tmp_path / "criteria.yaml"
    path.write_text(CRITERIA)
    return Criteria.from_yaml(str(path))


def figure(held: float, policy: float, error: float) -> dict[str, Any]:
    return {"held": held, "policy": policy, "difference": policy - held, "error": error, "measured": held}


def estimate(start_ns: int, digest: str, mode: str = "shadow", **changes: dict[str, Any]) -> dict[str, Any]:
    """By which slice 1 would have got more, and all else about the same."""
    rows = []
    for number in range(5):
        carried = figure(40, 41, 5) if number else figure(40, 44, 1)
        quiet = {"carried_mbps": carried, "delay_p99_us": None, "broken_s": figure(0, 0, 0)}
        rows.append({"slice": f"slice{number + 1}", "offered_mbps": 45.0, **quiet})
    rows[0] |= changes
    window = {"run_id": "run-1", "bundle": digest, "mode": mode, "start_ns": start_ns, "end_ns": start_ns + 10**9}
    return {**window, "window_s": 1.6, "model": {}, "slices": rows}


@pytest.fixture
def judged(tmp_path: Path, bundle: Path, criteria: Criteria) -> Callable[..., PromotionDecision]:
    """``judged(change, *estimates)``: the verdict on a good recording, changed; segments are short."""

    def judge(
        change: Callable[[Records], object] | None = None, *estimates: dict[str, Any], **run: Any
    ) -> PromotionDecision:
        folder = tmp_path / "records"
        shutil.rmtree(folder, ignore_errors=True)
        records, digest = ticks(COUNT), BundleFiles.read(bundle).digest
        if change is not None:
            change(records)
        writer = SegmentWriter(folder, 1 << 30, segment_s=2.0)
        facts = description(digest=run.get("digest", digest))
        for part in np.array_split(records, 40):
            writer.add(part, facts, 2)
        writer.close()
        shutil.rmtree(tmp_path / FOLDER, ignore_errors=True)
        count(tmp_path, records, facts)
        given = estimates or [estimate(1_770_000_000_000_000_000 + k, digest) for k in (0, 10**10)]
        return promotion.judge(BundleFiles.read(bundle), *recorded(tmp_path), criteria, given)

    return judge


def recorded(state: Path) -> tuple[EvidenceFolder, SegmentReader]:
    return EvidenceFolder(state), SegmentReader(state / "records")


def failed(verdict: PromotionDecision) -> set[str]:
    return {finding.criterion for finding in verdict.findings if not finding.ok}


def measured(verdict: PromotionDecision, criterion: str) -> float | None:
    return next(finding.measured for finding in verdict.findings if finding.criterion == criterion)


def test_a_good_recording_promotes(judged: Callable[..., PromotionDecision], bundle: Path) -> None:
    verdict = judged()
    assert verdict.reasons == []
    assert verdict.promoted
    assert (verdict.recording.ticks, verdict.recording.runs) == (COUNT, {"run-1": COUNT})
    assert verdict.recording.first == "2026-02-02T02:40:00.000000Z"
    assert verdict.recording.last == "2026-02-02T02:40:19.995000Z"
    assert measured(verdict, "shadow.min_duration_s") == pytest.approx(20)
    assert measured(verdict, "budget.max_total_p99_us") == 157
    assert measured(verdict, "estimate.min_carried_gain_pct") == pytest.approx(2)
    written = promotion.check(promotion.promote(BundleFiles.read(bundle), verdict))
    assert promotion.check(BundleFiles.read(bundle)) == written
    assert written.bundle == BundleFiles.read(bundle).digest
    assert PolicyBundle.load(bundle).slices.names == ("slice1", "slice2", "slice3", "slice4", "slice5")
    text = yaml.safe_load((bundle / "promotion.yaml").read_text())
    assert text["criteria"]["guard"]["max_severe"] == 0
    assert len(text["findings"]) == 15
    assert text["recording"]["in_charge"] == {"policy": 1.0, "guard": 0.0, "safe": 0.0, "nobody": 0.0}
    assert text["recording"]["in_charge_acting"] is None


def wish_elsewhere(records: Records, share: float) -> Records:
    """A share of the decisions is changed by the guard."""
    changed = records[: round(share * COUNT)]
    changed["wanted"][:, 0, :] = 700
    return changed


def rows(field: str, span: slice, value: Any) -> Callable[[Records], None]:
    """Give a field of some ticks another value."""

    def change(records: Records) -> None:
        records[field][span] = value

    return change


def changed_for_info(records: Records) -> None:
    wish_elsewhere(records, 0.6)["reasons"] = Reason.SLEW.bit


def changed_for_more(records: Records) -> None:
    changed = wish_elsewhere(records, 0.011)
    changed["reasons"], changed["node_reasons"] = Reason.SLEW.bit, Reason.TELEMETRY_FROZEN.bit  # comes up once


def held_and_safe(records: Records) -> None:
    wish_elsewhere(records, 0.1)["node_reasons"] = Reason.SAFE_SETTING.bit
    records["level"][: COUNT // 10] = Level.SAFE


@pytest.mark.parametrize(
    ("change", "criteria_failed"),
    [
        (rows("mode", slice(2500, None), Mode.LIVE), {"shadow.min_duration_s", "shadow.min_ticks"}),
        (changed_for_info, {"guard.min_unchanged_ratio"}),
        (changed_for_more, {"guard.min_agreement_ratio"}),
        (held_and_safe, {"guard.min_agreement_ratio"}),
        (rows("node_reasons", slice(1000, 1100), Reason.SLA_FLOOR.bit), {"guard.max_severe"}),
        (rows("reasons", slice(500, 510, 5), Reason.OSCILLATION.bit), {"guard.max_warning_per_hour"}),
        (rows("level", slice(COUNT // 8), Level.SAFE), {"guard.max_safe_ratio"}),
        (rows("flags", slice(5), LATE), {"budget.max_late_ratio"}),
        (rows("infer_ns", slice(41), 600_000), {"budget.max_total_p99_us"}),
        (rows("valid", slice(201), 0), {"telemetry.max_invalid_ratio"}),
    ],
)
def test_each_criterion_alone_says_no(
    change: Callable[[Records], None], criteria_failed: set[str], judged: Callable[..., PromotionDecision], bundle: Path
) -> None:
    verdict = judged(change)
    assert failed(verdict) == criteria_failed
    assert not verdict.promoted
    with pytest.raises(ValueError, match="not promoted"):
        promotion.promote(BundleFiles.read(bundle), verdict)
    assert not (bundle / "promotion.yaml").exists()


def test_what_is_just_within_passes(judged: Callable[..., PromotionDecision]) -> None:
    def almost(records: Records) -> None:
        records["flags"][:4] = LATE
        records["infer_ns"][:39] = 600_000
        records["valid"][:200, 1] = 0
        wish_elsewhere(records, 0.5)["reasons"] = Reason.SLEW.bit
        records["node_reasons"][3000:3400] = Reason.TELEMETRY_STALE.bit  # once: 180 an hour

    assert judged(almost).reasons == []


def test_what_a_canary_was_recorded_with_counts_for_who_was_in_charge_alone(
    judged: Callable[..., PromotionDecision],
) -> None:
    def canary(records: Records) -> None:
        records["mode"][-100:] = Mode.CANARY
        records["level"][-40:], records["node_reasons"][-40:] = Level.SAFE, Reason.SAFE_SETTING.bit
        records["reasons"][-40:, 0] = Reason.SLA_FLOOR.bit

    verdict = judged(canary)
    assert failed(verdict) == {"guard.max_safe_ratio"}
    assert verdict.recording.in_charge == {"policy": 1.0, "guard": 0.0, "safe": 0.0, "nobody": 0.0}
    assert verdict.recording.in_charge_acting == {"policy": 0.6, "guard": 0.0, "safe": 0.4, "nobody": 0.0}


def test_paused_ticks_do_not_count(judged: Callable[..., PromotionDecision]) -> None:
    def operated(records: Records) -> None:
        records["node_reasons"][:300] = Reason.PAUSED.bit
        records["node_reasons"][300:600] = Reason.ORDERED_SAFE.bit
        records["wanted"][:600, 0] = 5000
        records["reasons"][300:600] = Reason.SLA_FLOOR.bit

    verdict = judged(operated)
    assert verdict.reasons == []
    assert verdict.recording.ticks == COUNT - 600


def test_another_bundles_records_do_not_count(judged: Callable[..., PromotionDecision]) -> None:
    verdict = judged(digest="cd" * 32)
    assert verdict.recording.ticks == 0
    assert all(f.criterion.startswith(("estimate.", "records.")) for f in verdict.findings if f.ok)
    assert "guard.max_severe: nothing measured; required: <= 0" in verdict.reasons


LONGER = figure(0.0, 0.8, 0.1)


@pytest.mark.parametrize(
    ("changes", "criteria_failed"),
    [
        ([{}, {"broken_s": LONGER}], {"estimate.min_promise_gain_s_per_hour", "estimate.max_worse_ratio"}),
        ([{}, {"broken_s": figure(0.0, 0.8, 0.9)}], set()),
        ([{"broken_s": figure(1.6, 0.2, 0.1)}, {"broken_s": LONGER}], {"estimate.max_worse_ratio"}),
        ([{"carried_mbps": figure(40, 20, 2)}] * 2, {"estimate.min_carried_gain_pct"}),
        ([{}], {"estimate.min_windows"}),
    ],
)
def test_estimates_count_by_what_they_distinguish(
    changes: list[dict[str, Any]], criteria_failed: set[str], judged: Callable[..., PromotionDecision], bundle: Path
) -> None:
    digest = BundleFiles.read(bundle).digest
    rows = [estimate(1_770_000_000_000_000_000 + 10**10 * k, digest, **change) for k, change in enumerate(changes)]
    verdict = judged(None, *rows)
    assert failed(verdict) == criteria_failed
    assert measured(verdict, "estimate.min_windows") == len(rows)


def test_without_estimates_there_is_no_promotion(
    judged: Callable[..., PromotionDecision], bundle: Path, tmp_path: Path
) -> None:
    criteria = judged().criteria
    failures = failed(promotion.judge(BundleFiles.read(bundle), *recorded(tmp_path), criteria, []))
    assert [name.startswith("estimate.") for name in failures] == [True] * 4


def test_a_changed_bundle_is_not_promoted_any_more(judged: Callable[..., PromotionDecision], bundle: Path) -> None:
    with pytest.raises(ConfigError, match="never promoted; run it in shadow, then `slicepilot promote` it; or use --"):
        promotion.check(BundleFiles.read(bundle))
    verdict = judged()
    promotion.promote(BundleFiles.read(bundle), verdict)
    loaded = PolicyBundle.load(bundle)
    dataclasses.replace(loaded, training=dataclasses.replace(loaded.training, seed=8)).save(bundle.parent / "other")
    shutil.copy(bundle / "promotion.yaml", bundle.parent / "other")
    with pytest.raises(ConfigError, match=r"promoted with other contents than it has now \([0-9a-f]{12}\); run it"):
        promotion.check(BundleFiles.read(bundle.parent / "other"))
    with pytest.raises(ValueError, match="not promoted"):
        promotion.promote(BundleFiles.read(bundle.parent / "other"), verdict)


def test_a_promotion_since_a_bundle_was_loaded_counts_if_it_is_signed_too(
    judged: Callable[..., PromotionDecision], bundle: Path, keys: tuple[Path, Path]
) -> None:
    private, public = keys
    signature.sign(BundleFiles.read(bundle), private)
    policies = load_bundle(bundle, str(public)), load_bundle(bundle)
    for policy in policies:
        with pytest.raises(ConfigError, match="never promoted"):
            policy.require_promoted(False)
    promotion.promote(BundleFiles.read(bundle), judged())
    trusting, other = policies
    other.require_promoted(False)
    with pytest.raises(ConfigError, match=r"SHA256SUMS\.sig: does not fit SHA256SUMS and promotion\.yaml"):
        trusting.require_promoted(False)
    signature.sign(BundleFiles.read(bundle), private)
    trusting.require_promoted(False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 1}, "format_version: expected 2"),
        ({"bundle": None}, "bundle: expected a string"),
        ({"approved_by": "me"}, "[.]{3}: unknown field"),
        ({"findings": []}, "findings that do not promote it"),
    ],
)
def test_a_promotion_that_does_not_fit_is_refused(
    change: dict[str, Any], message: str, judged: Callable[..., PromotionDecision], bundle: Path
) -> None:
    promotion.promote(BundleFiles.read(bundle), judged())
    path = bundle / "promotion.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    with pytest.raises(ConfigError, match=message):
        promotion.check(BundleFiles.read(bundle))


AMONG_OTHER_FILES = """
set -e
mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/upper,workdir=$1/work" /etc
mkdir -p /etc/slicepilot && install -m "$2" "$3" /etc/slicepilot/signing-key.pem
shift 3
exec "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: an /etc of its own")
def test_the_key_at_the_default_path_signs_what_is_promoted(
    judged: Callable[..., PromotionDecision], bundle: Path, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    judged()
    (tmp_path / "overlay").mkdir()

    def promoted(mode: str, *options: str) -> subprocess.CompletedProcess[str]:
        arguments = [str(bundle), "--records", str(tmp_path / "records"), "-c", str(tmp_path / "criteria.yaml")]
        shell = ["unshare", "--mount", "sh", "-c", AMONG_OTHER_FILES, "sh", str(tmp_path / "overlay"), mode]
        return subprocess.run(
            [*shell, str(keys[0]), sys.executable, "-m", "slicepilot.cli", "promote", *arguments, *options],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    unsigned = promoted("600", "--no-sign")
    assert unsigned.returncode == 0, unsigned.stderr
    assert not (bundle / "SHA256SUMS.sig").exists()
    readable = promoted("644")
    assert readable.returncode == 2
    assert "mode 0644, user 0; it must be root's own, of mode 0600" in readable.stderr
    signed = promoted("600")
    assert signed.returncode == 0, signed.stderr
    assert "promoted and signed" in signed.stdout
    signature.verify(BundleFiles.read(bundle), keys[1])
