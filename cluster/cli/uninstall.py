"""``slicepilot k8s uninstall``: everything as it was before."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import AGENTS, Kubeconfig, Namespace


def uninstall(
    namespace: Namespace = AGENTS,
    kubeconfig: Kubeconfig = None,
    keep_slicesets: Annotated[
        bool, typer.Option("--keep-slicesets", help="Keep SliceSets; the knobs are restored when the agents end.")
    ] = False,
    with_crds: Annotated[
        bool,
        typer.Option("--with-crds", help="Delete the custom resource definitions too, and with them all SliceSets."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    wait: Annotated[float, typer.Option(min=1, max=3600, help="Timeout of each wait in seconds.")] = 120,
) -> None:
    """Delete all SliceSets, then the agents and their roles; the original knobs are restored when it returns.

    Waits until no NodeSliceSet is left and the agents' pods are gone. The definitions stay unless --with-crds is
    given; the namespace stays. Asks for confirmation.

    Example: [bold]slicepilot k8s uninstall --yes[/bold]
    """
    from slicepilot.cli.shared.output import stderr
    from slicepilot.cluster.client.errors import ApiError
    from slicepilot.cluster.install.manifests import definitions, in_order, manifests
    from slicepilot.cluster.install.objects import operator_api
    from slicepilot.cluster.install.removal import declared_sets, remove, withdraw
    from slicepilot.cluster.install.values import EVERYTHING, values
    from slicepilot.configs import ConfigError, FailureError

    if keep_slicesets and with_crds:
        raise ConfigError("--keep-slicesets: not with --with-crds, which deletes them; accepted: one of the two")
    api = operator_api(kubeconfig)
    try:
        there = declared_sets(api)
    except ApiError as error:
        raise FailureError(str(error)) from error
    if there and not keep_slicesets and not yes:
        typer.confirm(f"Delete {len(there)} SliceSets of this cluster, and the agents?", abort=True, err=True)
    documents = in_order([*definitions(), *manifests(values(EVERYTHING), namespace)])  # whatever it was made with

    def told(line: str) -> None:
        stderr.print(line, highlight=False, markup=False)

    remove(
        api,
        documents,
        namespace,
        told,
        slice_sets=not keep_slicesets,
        with_crds=with_crds,
        seconds=wait,
    )
    withdraw(api, (), told)
