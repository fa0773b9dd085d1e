"""``slicepilot control``: orders to a running controller.

Its publisher answers, which strangers talk to, and which may lie once it has fallen: what it says is held against its
schema before anything is shown, and shown as plain text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from slicepilot.cli.shared.agents_option import names_of
from slicepilot.cli.shared.output import console, print_json
from slicepilot.configs import FailureError
from slicepilot.configs.text import name_in_cells, printable
from slicepilot.controller.contracts.answers import OrderAnswer, Status

Name = Annotated[str | None, typer.Option(help="Name of the controller; not needed if only one runs.")]
RunRoot = Annotated[Path | None, typer.Option(help="Directory with one subdirectory per controller.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[bool, typer.Option(help="Allow a bundle that was not promoted to act.")]


def status(name: Name = None, run_root: RunRoot = None, as_json: AsJson = False) -> None:
    """Show the mode, the guard and the figures of the slices.

    Example: [bold]slicepilot control status --name sp[/bold]
    """
    document = _ask({"command": "status"}, name, run_root)
    if as_json:
        print_json(document, Status)
    else:
        _print_status(document)


def mode(
    mode: Annotated[str, typer.Argument(help="Mode: shadow, canary or live.")],
    slices: Annotated[
        list[str] | None, typer.Option(help="Slices that mode canary acts on, separated by commas.")
    ] = None,
    force: Force = False,
    name: Name = None,
    run_root: RunRoot = None,
    as_json: AsJson = False,
) -> None:
    """Change the mode: leaving shadow takes over the knobs, entering it restores them.

    Example: [bold]slicepilot control mode canary --slices slice2,slice3[/bold]
    """
    order: dict[str, Any] = {"command": "mode", "mode": mode}
    if slices:
        order["slices"] = list(names_of(slices))
    _order(order | _force(force), name, run_root, as_json)


def pause(name: Name = None, run_root: RunRoot = None, as_json: AsJson = False) -> None:
    """Hold the knobs at their current values until resumed."""
    _order({"command": "pause"}, name, run_root, as_json)


def resume(name: Name = None, run_root: RunRoot = None, as_json: AsJson = False) -> None:
    """End a pause, an ordered safe setting, and latched states of the guard."""
    _order({"command": "resume"}, name, run_root, as_json)


def safe(name: Name = None, run_root: RunRoot = None, as_json: AsJson = False) -> None:
    """Apply the declared safe setting until resumed."""
    _order({"command": "safe"}, name, run_root, as_json)


def reload(
    bundle: Annotated[Path | None, typer.Option(help="New policy: a bundle, as for run.")] = None,
    guard: Annotated[str | None, typer.Option(help="New guard configuration: a shipped name or a YAML file.")] = None,
    force: Force = False,
    name: Name = None,
    run_root: RunRoot = None,
    as_json: AsJson = False,
) -> None:
    """Load another policy, guard configuration, or both, between two ticks.

    Example: [bold]slicepilot control reload --bundle runs/node-seed1/bundle[/bold]
    """
    order: dict[str, Any] = {"command": "reload"}
    if bundle is not None:
        from slicepilot.agents.learned.shipped import folder_of
        from slicepilot.cli.shared.registry import local_bundle
        from slicepilot.controller.service.run_config import BUNDLES

        folder = folder_of(local_bundle(bundle, Path(BUNDLES)))
        order["bundle"] = str(folder.absolute())  # the controller has another working directory
    if guard is not None:
        order["guard"] = str(Path(guard).absolute()) if "/" in guard or guard.endswith((".yaml", ".yml")) else guard
    _order(order | _force(force), name, run_root, as_json)


def _force(force: bool) -> dict[str, Any]:
    return {"force": True} if force else {}


def _order(order: dict[str, Any], name: str | None, run_root: Path | None, as_json: bool) -> None:
    answer = _ask(order, name, run_root)
    if as_json:
        print_json(answer, OrderAnswer)
    else:
        lines = [f"mode {answer['mode']}, acting on {', '.join(answer['slices']) or 'no slice'}"]
        lines += ["paused"] * answer["paused"] + ["safe setting ordered"] * answer["ordered_safe"]
        lines += ["shadow: only recorded"] * (answer["mode"] == "shadow" and order["command"] in {"pause", "safe"})
        _say("; ".join(lines))


def _ask(order: dict[str, Any], name: str | None, run_root: Path | None) -> dict[str, Any]:
    """The controller's answer to an order; raises FailureError where it has none, or refuses."""
    from slicepilot.configs.documents import DocumentError, check
    from slicepilot.controller.service.control_client import ControlClient, ControlError, find_socket

    is_status = order["command"] == "status"
    try:
        with ControlClient(find_socket(name, run_root)) as client:
            answer = client.request(order)
        document: Any = answer.get("status") if is_status else answer
        check(json.dumps(document), Status if is_status else OrderAnswer)
    except ControlError as error:
        raise FailureError(str(error)) from error
    except DocumentError as error:
        raise FailureError(f"no answer: {error}") from error
    except RecursionError:
        raise FailureError("no answer: too deeply nested") from None
    return dict(document)


def _say(text: str) -> None:
    console.print(printable(text), markup=False, highlight=False)


def _print_status(document: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from slicepilot.cli.shared.output import figures_table
    from slicepilot.controller.contracts.latches import NODE_LATCHED, NODE_REMEDY
    from slicepilot.controller.contracts.reasons import Reason
    from slicepilot.env.knobs import KNOB_FIELDS

    paused = ", paused" if document["paused"] else ""
    _say(f"{document['run']['name']}: {document['mode']}, guard {document['level']}{paused}, {document['agent']}")
    table: Table = figures_table("", ["slice", "offered", "carried", "p99 ms", "CPU limit", "nice", "egress"])
    table.padding = 0
    table.add_column("guard", min_width=max(len(reason.label) for reason in Reason))  # later reasons go below
    for entry in document["slices"]:
        knobs = entry["knobs"]["applied"] or dict.fromkeys(KNOB_FIELDS)
        delay_us = entry["delay_p99_us"]
        figures = (entry["offered_mbps"], entry["carried_mbps"], None if delay_us is None else delay_us / 1e3)
        limits = (_limit(knobs["cpu_limit_mcpu"]), _figure(knobs["nice"]), _limit(knobs["egress_mbps"]))
        reasons = " ".join(given["reason"] for given in entry["reasons"])
        cells = (name_in_cells(entry["name"]), *map(_figure, figures), *limits, reasons)
        table.add_row(*(Text(printable(cell)) for cell in cells))  # a plain cell would be read for markup
    console.print(table)
    if document["level"] == "latched":
        _say(NODE_LATCHED)
        _say(f"  {NODE_REMEDY}")
    for trip in document["notes"].get("trips", ()):
        _say(f"{trip['slice']}: {trip['text']}")
        if trip["remedy"]:
            _say(f"  {trip['remedy']}")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _limit(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
