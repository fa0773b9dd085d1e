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

    Exit code 1: there is no agent, or an agent is not ready.

    Example: [bold]slicepilot k8s status[/bold]
    """
    from slicepilot.cli.shared.output import print_json
    from slicepilot.cluster.client.errors import ApiError
    from slicepilot.cluster.status.overview import operator_api, overview
    from slicepilot.configs import FailureError

    try:
        result = overview(operator_api(kubeconfig), namespace)
    except ApiError as error:
        raise FailureError(str(error)) from error
    if as_json:
        print_json(result, schema.Overview)
    else:
        _print(result)
    if not result["agents"] or not all(item["ready"] for item in result["agents"]):
        raise typer.Exit(1)


def _print(result: dict[str, Any]) -> None:
    from slicepilot.cli.shared.output import console, figures_table

    agents = figures_table(f"Agents in {result['namespace']}", ("node", "ready", "most", "restarts"))
    for item in result["agents"]:
        ready = "yes" if item["ready"] else "no"
        agents.add_row(_short(item["node"]), ready, item["highest_mode"], str(item["restarts"]))
    console.print(agents)
    sets = figures_table("SliceSets", ("SliceSet", "mode", "nodes", "kept", "ready"))
    for item in result["slice_sets"]:
        name = _short(f"{item['namespace']}/{item['name']}", 2 * MOST_NAME)
        sets.add_row(name, item["mode"], str(item["nodes"]), item["kept"] or "-", _state(item, "Ready"))
    console.print(sets)
    for text in _troubles(result):
        console.print(text, highlight=False, markup=False)


def _troubles(result: dict[str, Any]) -> list[str]:
    """Troubles, a line for each; long lines wrap."""
    reported = [f"{item['node']}: {item['trouble']}" for item in result["agents"] if item["trouble"]]
    for item in result["nodes"]:
        where = f"{item['namespace']}/{item['slice_set']} on {item['node']}"
        for each in item["conditions"]:
            wrong = each["status"] == ("True" if each["type"] == "Degraded" else "False")
            if wrong and each["type"] != "Controlled":
                reported.append(f"{where}: {each['type']}: {each['reason']}: {each['message']}")
    return reported


def _state(item: dict[str, Any], kind: str) -> str:
    result = next((each for each in item["conditions"] if each["type"] == kind), None)
    if result is None:
        return "-"
    return "yes" if result["status"] == "True" else result["reason"]


def _short(text: str | None, most: int = MOST_NAME) -> str:
    shown = text or "-"
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"
