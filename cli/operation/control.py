"""``slicepilot control``: orders to a running controller."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ...controller.contracts.answers import OrderAnswer, Status
from ..shared.agents_option import names_of
from ..shared.output import console, print_json

NAME_CELLS = 12  # of a slice's name: in 80 columns there has to be room for figures and the longest reason

Name = Annotated[str | None, typer.Option(help="Which controller; not needed where only one runs.")]
RunRoot = Annotated[Path | None, typer.Option(help="Folder under which controllers have theirs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Force = Annotated[bool, typer.Option(help="Act with a bundle that was never promoted.")]


def status(name: Name = None, run_root: RunRoot = None, as_json: AsJson = False) -> None:
    """Show mode, guard and what the slices get.

    Example: [bold]slicepilot control status --name sp[/bold]
    """
    document = _ask({"command": "status"}, name, run_root)["status"]
    if as_json:
        print_json(document, Status)
    else:
        _print_status(document)


def mode(
    mode: Annotated[str, typer.Argument(help="shadow, canary or live.")],
    slices: Annotated[list[str] | None, typer.Option(help="Slices a canary acts on; comma-separated.")] = None,
    force: Force = False,
    name: Name = None,
    run_root: RunRoot = None,
    as_json: AsJson = False,
) -> None:
    """Change what becomes of decisions; from shadow it takes the knobs over, to shadow it gives them back.

    Example: [bold]slicepilot control mode canary --slices slice2,slice3[/bold]
    """
    order: dict[str, Any] = {"command": "mode", "mode": mode}
    if slices:
        order["slices"] = list(names_of(slices))
    _order(order | _force(force), name, run_root, as_json)


def pause(name: Name = None, run_root: RunRoot = None, as_json: AsJson = False) -> None:
    """Hold the knobs as they are until resumed."""
    _order({"command": "pause"}, name, run_root, as_json)


def resume(name: Name = None, run_root: RunRoot = None, as_json: AsJson = False) -> None:
    """End a pause, an ordered safe setting, and what the guard has latched."""
    _order({"command": "resume"}, name, run_root, as_json)


def safe(name: Name = None, run_root: RunRoot = None, as_json: AsJson = False) -> None:
    """Go to the declared safe setting and stay there until resumed."""
    _order({"command": "safe"}, name, run_root, as_json)


def reload(
    bundle: Annotated[Path | None, typer.Option(help="Another policy: its folder, or generalist.")] = None,
    guard: Annotated[str | None, typer.Option(help="Name or file of another guard configuration.")] = None,
    force: Force = False,
    name: Name = None,
    run_root: RunRoot = None,
    as_json: AsJson = False,
) -> None:
    """Take up another policy, guard configuration, or both, between two ticks.

    Example: [bold]slicepilot control reload --bundle runs/ppo-seed1/bundle[/bold]
    """
    order: dict[str, Any] = {"command": "reload"}
    if bundle is not None:
        from ...agents.learned.shipped import folder_of

        order["bundle"] = str(folder_of(bundle).absolute())  # the controller has another working directory
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
        acting = ", ".join(answer.get("slices", [])) or "no slice"
        told = [f"mode {answer.get('mode')}, acting on {acting}"]
        told += ["paused"] * bool(answer.get("paused")) + ["safe setting ordered"] * bool(answer.get("ordered_safe"))
        console.print("; ".join(told), markup=False, highlight=False)


def _ask(order: dict[str, Any], name: str | None, run_root: Path | None) -> dict[str, Any]:
    from ...controller.service.control_client import ControlClient, ControlError, find_socket

    try:
        with ControlClient(find_socket(name, run_root)) as client:
            return client.request(order)
    except ControlError as error:
        typer.echo(f"slicepilot: error: {error}", err=True)
        raise typer.Exit(1) from error


def _print_status(document: dict[str, Any]) -> None:
    from rich.table import Table

    from ...controller.contracts.latches import NODE_LATCHED, NODE_REMEDY
    from ...controller.contracts.reasons import Reason
    from ...env.knobs import KNOB_FIELDS
    from ..shared.output import figures_table

    paused = ", paused" if document["paused"] else ""
    head = f"{document['run']['name']}: {document['mode']}, guard {document['level']}{paused}, {document['agent']}"
    console.print(head, markup=False, highlight=False)
    table: Table = figures_table("", ["slice", "offered", "carried", "p99 ms", "CPU limit", "nice", "egress"])
    table.padding = 0
    table.columns[0].max_width = NAME_CELLS
    table.add_column("guard", min_width=max(len(reason.label) for reason in Reason))  # the next ones go on below
    for one in document["slices"]:
        knobs = one["knobs"]["applied"] or dict.fromkeys(KNOB_FIELDS)
        delay_us = one["delay_p99_us"]
        figures = (one["offered_mbps"], one["carried_mbps"], None if delay_us is None else delay_us / 1e3)
        limits = (_limit(knobs["cpu_limit_mcpu"]), _figure(knobs["nice"]), _limit(knobs["egress_mbps"]))
        reasons = " ".join(given["reason"] for given in one["reasons"])
        table.add_row(one["name"], *map(_figure, figures), *limits, reasons)
    console.print(table)
    if document["level"] == "latched":
        console.print(f"{NODE_LATCHED}\n  {NODE_REMEDY}", markup=False, highlight=False)
    for trip in document["notes"].get("trips", ()):
        console.print(f"{trip['slice']}: {trip['text']}", markup=False, highlight=False)
        if trip["remedy"]:
            console.print(f"  {trip['remedy']}", markup=False, highlight=False)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _limit(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
