"""``slicepilot k8s install``: the agents, onto a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import AGENTS, Kubeconfig, Namespace, Set, ValuesFile


def install(
    values: ValuesFile = None,
    assignments: Set = None,
    namespace: Namespace = AGENTS,
    kubeconfig: Kubeconfig = None,
    wait: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds to wait for ready agents; 0 does not wait.")
    ] = 180,
    force: Annotated[bool, typer.Option("--force", help="Take over fields that Helm or kubectl has set.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Let the server validate everything without storing it.")
    ] = False,
) -> None:
    """Install the agents without Helm, or change their installation.

    Applies the definitions, the roles and the DaemonSet by server-side apply, and creates the namespace. Agents
    only watch unless highestMode is set. Exit code 1: the server refuses something, or not all nodes have a ready
    agent in time.

    Example: [bold]slicepilot k8s install --set image.repository=registry.example/slicepilot-agent[/bold]
    """
    from slicepilot.cli.shared.output import stderr
    from slicepilot.cluster.install.apply import install as put
    from slicepilot.cluster.install.apply import rolled_out
    from slicepilot.cluster.install.manifests import definitions, in_order, manifests
    from slicepilot.cluster.install.objects import namespace_there, operator_api
    from slicepilot.cluster.install.removal import withdraw
    from slicepilot.configs import FailureError

    from .options import given_values

    def told(line: str) -> None:
        stderr.print(line, highlight=False, markup=False)

    known = given_values(values, assignments)
    path: Path | None = kubeconfig
    api = operator_api(path)
    if not namespace_there(api, namespace):
        if dry_run:
            raise FailureError(f"namespace {namespace}: not there; a dry run needs it, since what is in it is checked")
        known = {**known, "namespace": {"create": True}}
    documents = in_order([*definitions(), *manifests(known, namespace)])
    daemons = put(api, documents, told, force=force, dry_run=dry_run)
    if not dry_run:
        withdraw(api, documents, told)
    if daemons is not None and wait > 0 and not dry_run:
        nodes = rolled_out(api, daemons, wait, told)
        told(f"agents run on {nodes} nodes, and let SliceSets have mode {known['highestMode']} at most")
