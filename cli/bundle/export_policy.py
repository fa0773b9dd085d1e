"""``slicepilot bundle export``: a bundle's policy as a file of ONNX or of Stable-Baselines3."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slicepilot.cli.schemas.operation import ExportedBundle
from slicepilot.cli.shared.output import print_json, say
from slicepilot.cli.shared.registry import BUNDLE_HELP, local_bundle
from slicepilot.cli.shared.streams import refuse_stdout, write_out
from slicepilot.configs import ConfigError


def export_policy(
    bundle: Annotated[Path, typer.Argument(help=BUNDLE_HELP, show_default=False)],
    sb3: Annotated[
        Path | None, typer.Option(help="Write a file that PPO.load or SAC.load of Stable-Baselines3 takes.")
    ] = None,
    onnx: Annotated[Path | None, typer.Option(help="Write its model in ONNX.")] = None,
    scenario: Annotated[
        str | None,
        typer.Option(help="Scenario that the file of --sb3 is for (default: the bundle's slices).", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a bundle's policy as a file of another library.

    Such a file goes back by `bundle import`, and `evaluate --policy` judges it. What a bundle lacks, such as a critic,
    is untrained in a file of Stable-Baselines3.

    Example: slicepilot bundle export generalist --sb3 generalist.zip --scenario multi-promise
    """
    from slicepilot.agents.learned.bundle import PolicyBundle

    if scenario is not None and sb3 is None:
        raise ConfigError(f"scenario = {scenario!r}: needs --sb3")
    if sb3 is None and onnx is None:
        raise ConfigError("sb3, onnx: neither is given; expected --sb3 FILE.zip, --onnx FILE or both")
    loaded = PolicyBundle.load(local_bundle(bundle))
    refuse_stdout(sb3, "a file", "sb3")
    refuse_stdout(onnx, "a file", "onnx")
    algorithm = None
    if sb3 is not None:
        from slicepilot.env.simulator.scenario import Scenario
        from slicepilot.training.policies.sb3_writing import sb3_file

        slices = loaded.slices if scenario is None else Scenario.from_yaml(scenario).slice_set()
        algorithm, content = sb3_file(loaded, len(slices))
        write_out(sb3, content, "--sb3")
    if onnx is not None:
        write_out(onnx, loaded.model, "--onnx")
    columns, actions = loaded.widths
    document = {
        "bundle": str(bundle),
        "sb3": None if sb3 is None else str(sb3),
        "algorithm": algorithm,
        "onnx": None if onnx is None else str(onnx),
        "coding": loaded.coding,
        "columns": columns,
        "actions": actions,
    }
    if as_json:
        print_json(document, ExportedBundle)
        return
    if sb3 is not None:
        say(f"{sb3}: {algorithm}.load({str(sb3)!r}), with slicepilot installed")
    if onnx is not None:
        say(f"{onnx}: {columns} figures and {actions} actions for each slice")
    if loaded.coding == "guided":
        say("observations hold what a rule decides, and actions correct it (docs/environment.md)")
