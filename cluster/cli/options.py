"""Options that commands which install, look and remove have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Kubeconfig = Annotated[
    Path | None, typer.Option(help="kubeconfig of the cluster (default: $KUBECONFIG, or ~/.kube/config).")
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the agents.")]
ValuesFile = Annotated[Path | None, typer.Option("--values", "-f", help="Values of the chart (YAML).")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Value of the chart, for instance highestMode=live; overrides --values."),
]
AGENTS = "slicepilot-system"


def given_values(file: Path | None, assignments: list[str] | None) -> dict[str, Any]:
    """All values: the chart's own, those of the file, those that are set.

    Raises:
        ConfigError: names the field, the value and what is accepted.
    """
    from slicepilot.cluster.install.values import assigned, merged, values
    from slicepilot.configs.loader import read_yaml

    found = {} if file is None else read_yaml(file) or {}
    values(found, str(file))
    return values(merged(found, assigned(assignments or [])), "--set" if assignments else str(file))
