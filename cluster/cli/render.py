"""``slicepilot k8s render``: the objects of an installation, as YAML."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import AGENTS, Namespace, Set, ValuesFile


def render(
    values: ValuesFile = None,
    assignments: Set = None,
    namespace: Namespace = AGENTS,
    crds: Annotated[bool, typer.Option(help="Include the definitions of SliceSet and NodeSliceSet.")] = True,
) -> None:
    """Print the manifests of the Helm chart for given values, without Helm.

    Example: [bold]slicepilot k8s render --set highestMode=canary --set namespace.create=true[/bold]
    """
    import yaml

    from slicepilot.cluster.install.manifests import definitions, in_order, manifests

    from .options import given_values

    found = manifests(given_values(values, assignments), namespace)
    documents = in_order([*found, *(definitions() if crds else [])])
    typer.echo(yaml.safe_dump_all(documents, sort_keys=False, width=120), nl=False)
