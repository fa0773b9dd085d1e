"""``slicepilot k8s status``: agents and SliceSets at a glance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from slicepilot.cli.schemas import cluster as schema

MOST_NAME = 24


def status(
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the agents.")] = "slicepilot-system",
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Kubeconfig file (default: KUBECONFIG, then ~/.kube/config).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show agents by node, SliceSets, and differences from what they declare.

    Exit code 1: there is no agent, or one is not ready.

    Example: [bold]slicepilot k8s status[/bold]
    """
    from slicepilot.cli.shared.output import print_json
    from slicepilot.cluster.client.errors import ApiError
    from slicepilot.cluster.status.overview import operator_api, overview
    from slicepilot.configs import FailureError

    try:
        found = overview(operator_api(kubeconfig), namespace)
    except ApiError as error:
        raise FailureError(str(error)) from error
    if as_json:
        print_json(found, schema.Overview)
    else:
        _print(found)
    if not found["agents"] or not all(one["ready"] for one in found["agents"]):
        raise typer.Exit(1)


def _print(found: dict[str, Any]) -> None:
    from slicepilot.cli.shared.output import console, figures_table

    agents = figures_table(f"Agents in {found['namespace']}", ("node", "ready", "most", "restarts"))
    for one in found["agents"]:
        agents.add_row(_short(one["node"]), _yes(one["ready"]), one["highest_mode"], str(one["restarts"]))
    console.print(agents)
    sets = figures_table("SliceSets", ("SliceSet", "mode", "nodes", "kept", "ready"))
    for one in found["slice_sets"]:
        name = _short(f"{one['namespace']}/{one['name']}", 2 * MOST_NAME)
        sets.add_row(name, one["mode"], str(one["nodes"]), one["kept"] or "-", _state(one, "Ready"))
    console.print(sets)
    for text in _troubles(found):
        console.print(text, highlight=False, markup=False)


def _troubles(found: dict[str, Any]) -> list[str]:
    """What is not as it should be, a line for each; long ones wrap."""
    told = [f"{one['node']}: {one['trouble']}" for one in found["agents"] if one["trouble"]]
    for one in found["nodes"]:
        where = f"{one['namespace']}/{one['slice_set']} on {one['node']}"
        for each in one["conditions"]:
            wrong = each["status"] == ("True" if each["type"] == "Degraded" else "False")
            if wrong and each["type"] != "Controlled":
                told.append(f"{where}: {each['type']}: {each['reason']}: {each['message']}")
    return told


def _state(one: dict[str, Any], kind: str) -> str:
    found = next((each for each in one["conditions"] if each["type"] == kind), None)
    if found is None:
        return "-"
    return "yes" if found["status"] == "True" else found["reason"]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _short(text: str | None, most: int = MOST_NAME) -> str:
    shown = text or "-"
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"
