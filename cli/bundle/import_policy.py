"""``slicepilot bundle import``: a policy of another library becomes a bundle."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.agents.learned.bundle import Agreement, PolicyBundle
from slicepilot.cli.shared.output import print_json, say, stderr
from slicepilot.cli.shared.signing import NoSign, Sign, signing_key
from slicepilot.configs import ConfigError
from slicepilot.configs.documents import Document

if TYPE_CHECKING:
    from slicepilot.env.slices import SliceSet


class ImportedBundle(Document):
    """A bundle made of another library's policy."""

    bundle: str
    digest: str
    policy: str
    """As it was given."""
    slices: list[str]
    """Those that it was trained for."""
    any_number: bool
    """Whether it serves any number of slices; otherwise as many."""
    signed: bool
    agreement: Agreement | None
    """With the library that the policy comes from; null for a policy that came as ONNX."""


def import_policy(
    policy: Annotated[
        str,
        typer.Argument(
            help="Policy: sb3:FILE.zip, with +FILE.pkl for VecNormalize's statistics, or onnx:FILE.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new bundle.", show_default=False)],
    scenario: Annotated[
        str | None,
        typer.Option(help="Scenario that the policy was trained on (default: the environment's).", show_default=False),
    ] = None,
    sign: Sign = None,
    no_sign: NoSign = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a bundle of a policy that another library trained on the Gymnasium environment.

    The bundle is checked, run in shadow, promoted and guarded like any other, on as many slices as its network takes.

    Example: slicepilot bundle import sb3:ppo.zip --scenario bursty-neighbours --out runs/ppo/bundle
    """
    from slicepilot.agents.learned import signature
    from slicepilot.agents.learned.files import BundleFiles
    from slicepilot.agents.learned.policy_names import PolicyName

    name = PolicyName.parse(policy)
    if name.kind == "code":
        raise ConfigError(f"{name.what}: is code, which a bundle has none of; expected sb3:FILE.zip or onnx:FILE")
    key = signing_key(sign, no_sign)
    if out.exists():
        raise ConfigError(f"out = {str(out)!r}: is there already; expected a folder that is not")
    bundle = _bundle(name, scenario)
    try:
        bundle = bundle.save(out)
        files = BundleFiles.read(out)
        if key is not None:
            files = signature.sign(files, key)
    except OSError as error:
        raise ConfigError(f"out = {str(out)!r}: {error.strerror}; expected a folder that can be written") from error
    document = _document(bundle, policy, files.digest, key is not None)
    if as_json:
        print_json(document, ImportedBundle)
    else:
        _print(document, scenario)


def _bundle(name: Any, scenario: str | None) -> PolicyBundle:
    from slicepilot.agents.learned.onnx_files import USUAL_SLICES, read_onnx
    from slicepilot.env.simulator.scenario import Scenario
    from slicepilot.env.slices import SliceSet

    slices: SliceSet | None = None if scenario is None else Scenario.from_yaml(scenario).slice_set()
    if name.kind == "onnx":
        bundle = read_onnx(name.path, name.what, name.name, slices)
    else:
        from slicepilot.training.policies.sb3_bundles import bundle_of_sb3

        stderr.print("converting in a process of its own", highlight=False)
        bundle = bundle_of_sb3(name, slices)
    if scenario is None and len(bundle.slices) != len(SliceSet.from_yaml(USUAL_SLICES)):
        raise ConfigError(
            f"{name.what}: is for {len(bundle.slices)} slices; expected --scenario with the scenario that it was "
            "trained on"
        )
    return bundle


def _document(bundle: PolicyBundle, policy: str, digest: str, signed: bool) -> dict[str, Any]:
    return {
        "bundle": str(bundle.origin),
        "digest": digest,
        "policy": policy,
        "slices": list(bundle.slices.names),
        "any_number": bundle.transfers is True,
        "signed": signed,
        "agreement": None if bundle.agreement is None else dataclasses.asdict(bundle.agreement),
    }


def _print(document: dict[str, Any], scenario: str | None) -> None:
    count = "any number of" if document["any_number"] else len(document["slices"])
    lines = [f"{document['bundle']}: for {count} slices{', signed' if document['signed'] else ''}"]
    if agreement := document["agreement"]:
        lines.append(
            f"its actions differ from the library's by {agreement['max_abs_error']:.1e} at most, over "
            f"{agreement['observations']} observations"
        )
    played = "" if scenario is None else f" --scenario {shlex.quote(scenario)}"
    lines.append(f"next: slicepilot evaluate --bundle {document['bundle']}{played}, or slicepilot run --bundle "
                 f"{document['bundle']}, in shadow")  # fmt: skip
    for line in lines:
        say(line)
