"""``slicepilot promote``: decide from a bundle's record in shadow whether it may act."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from slicepilot.cli.shared.output import console, figures_table, print_json, say, stderr
from slicepilot.cli.shared.registry import SCHEME, local_bundle
from slicepilot.cli.shared.signing import NoSign, Sign, signing_key
from slicepilot.configs import ConfigError
from slicepilot.configs.documents import Document
from slicepilot.controller.promotion.certificate import Finding, PromotionDecision, ShadowRecording

if TYPE_CHECKING:
    from slicepilot.agents.learned.bundle import PolicyBundle
    from slicepilot.training.runs.registry import Champions


class Verdict(Document):
    """A bundle's shadow recording, compared with the criteria."""

    bundle: str
    digest: str
    promoted: bool
    signed: bool
    champion: str | None
    """Its version in MLflow's registry, which is the champion now."""
    reasons: list[str]
    """The criteria that are not met."""
    findings: list[Finding]
    recording: ShadowRecording
    left_out: dict[str, str]
    """Files that were ignored in whole or part, and why."""


def promote(
    bundle: Annotated[
        Path, typer.Argument(help="Folder of the policy bundle, or models:/NAME@ALIAS.", show_default=False)
    ],
    records: Annotated[
        Path, typer.Option(help="Folder of the records of the controller that ran it in shadow.", show_default=False)
    ],
    criteria: Annotated[
        str, typer.Option("-c", "--criteria", help="Configuration: a shipped name or a YAML file.")
    ] = "default",
    sign: Sign = None,
    no_sign: NoSign = False,
    mlflow: Annotated[
        bool | None,
        typer.Option(
            "--mlflow/--no-mlflow",
            help="Make the bundle the champion of its model in MLflow (default: if it is tracked in a registry here).",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare what a controller has counted of a bundle in shadow with criteria, and record a promotion in the bundle.
    Exit code 1: not promoted.

    In MLflow the promotion is stored with the bundle's version, which becomes the champion of its registered model.

    Example: slicepilot promote runs/mine/bundle --records /var/lib/slicepilot/sp/records

    Example: slicepilot promote models:/slicepilot@challenger --records /var/lib/slicepilot/sp/records
    """
    from slicepilot.agents.learned import signature
    from slicepilot.agents.learned.bundle import PolicyBundle
    from slicepilot.agents.learned.files import SIGNATURE_FILE, BundleFiles
    from slicepilot.agents.learned.shipped import folder_of, is_shipped
    from slicepilot.controller.promotion import certificate as promotion
    from slicepilot.controller.promotion.criteria import Criteria
    from slicepilot.controller.promotion.signed import EvidenceFolder
    from slicepilot.controller.record.reader import SegmentReader

    wanted = Criteria.from_yaml(criteria)
    if is_shipped(bundle):
        raise ConfigError(
            f"bundle = {str(bundle)!r}: is part of the package, which is never written to; use a copy of "
            f"{str(folder_of(bundle))!r}, or what `slicepilot train --from {bundle}` makes"
        )
    files = BundleFiles.read(local_bundle(bundle))
    policy = PolicyBundle.of(files)  # checks that it is a bundle; its model is tried out where it runs
    key = signing_key(sign, no_sign)
    if key is None and SIGNATURE_FILE in files.parts:
        raise ConfigError(
            f"bundle {str(bundle)!r}: is signed, and a promotion ends the signature; sign again with --sign KEY"
        )
    champions = _champions(bundle, policy, files.digest, mlflow)
    reader = SegmentReader(records)
    verdict = promotion.judge(files, EvidenceFolder(records.resolve().parent), reader, wanted)
    if verdict.promoted:
        # What is signed are the bytes that were judged, whatever lies in the folder by now.
        files = promotion.promote(files, verdict)
        if key is not None:
            files = signature.sign(files, key)
    champion = champions.enter(files).address if champions is not None and verdict.promoted else None
    if as_json:
        print_json(_document(bundle, verdict, key is not None, champion), Verdict)
    else:
        _print(bundle, verdict, key is not None, champion)
    if not verdict.promoted:
        raise typer.Exit(1)


def _champions(bundle: Path, policy: PolicyBundle, digest: str, wanted: bool | None) -> Champions | None:
    """The registry in which the promotion is entered; None: no registry.

    Without the option it is entered where the bundle was taken from MLflow, or was tracked when it was trained and
    there is a registry: the environment names it, or the working folder has the default database.
    """
    from slicepilot.training.runs.store import DEFAULT_DATABASE, tracking_uri

    taken = str(bundle).startswith(SCHEME)
    known = bool(os.environ.get("MLFLOW_TRACKING_URI")) or Path(DEFAULT_DATABASE).exists()
    if wanted is None:
        wanted = taken or (policy.training.run_id is not None and known)
    if not wanted:
        if taken:
            raise ConfigError(f"no-mlflow with {bundle}: its promotion would be lost; expected the folder of a bundle")
        return None
    from slicepilot.training.runs.registry import Champions

    return Champions(tracking_uri(), digest)


def _document(bundle: Path, verdict: PromotionDecision, signed: bool, champion: str | None) -> dict[str, Any]:
    return {
        "bundle": str(bundle),
        "digest": verdict.digest,
        "promoted": verdict.promoted,
        "signed": signed and verdict.promoted,
        "champion": champion,
        "reasons": verdict.reasons,
        "findings": [dataclasses.asdict(finding) for finding in verdict.findings],
        "recording": dataclasses.asdict(verdict.recording),
        "left_out": verdict.left_out,
    }


def _print(bundle: Path, verdict: PromotionDecision, signed: bool, champion: str | None) -> None:
    from slicepilot.controller.contracts.charge import shares_text

    recording = verdict.recording
    table = figures_table(
        f"{bundle.name} ({verdict.digest[:12]}) in shadow", ("criterion", "required", "measured", "ok")
    )
    for finding in verdict.findings:
        measured = "nothing" if finding.measured is None else f"{finding.measured:.6g}"
        mark = Text("yes", "green") if finding.ok else Text("no", "red")
        table.add_row(finding.criterion, f"{finding.sign} {finding.required:.6g}", measured, mark)
    console.print(table)
    if recording.ticks:
        say(f"recorded from {recording.first} to {recording.last}")
    for where, shares in (
        ("shadow, had it acted", recording.in_charge),
        ("canary or live", recording.in_charge_acting),
    ):
        if shares is not None:
            say(f"in charge in {where}: {shares_text(shares)}")
    say(f"{recording.ticks} ticks of {len(recording.runs)} runs, {recording.windows} windows for the simulator")
    if recording.missing_windows:
        say(f"{recording.missing_windows} windows do not count: their ticks are gone from the records or were changed")
    for name, why in sorted(verdict.left_out.items()):
        stderr.print(f"left out: {name}: {why}", markup=False, highlight=False, soft_wrap=True)
    if verdict.promoted:
        say(f"promoted{' and signed' if signed else ''}: `run --mode live` takes {champion or bundle}")
        return
    say("not promoted:")
    for reason in verdict.reasons:
        say(f"  {reason}")
