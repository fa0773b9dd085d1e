"""The objects of an installation: the chart's templates with values, and its resource definitions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from slicepilot.configs import ConfigError
from slicepilot.configs.loader import read_yaml

from .template import rendered
from .values import CHART

DEFINITION = "CustomResourceDefinition"
_FIRST = ("Namespace", DEFINITION, "PriorityClass", "ServiceAccount", "ClusterRole", "Role")
"""What others need; the rest follows, and the DaemonSet comes last. Taken away in the other order."""
_LAST = ("DaemonSet",)
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def definitions() -> list[dict[str, Any]]:
    """The chart's resource definitions."""
    return [read_yaml(path) for path in sorted((CHART / "crds").glob("*.yaml"))]


def manifests(values: Mapping[str, Any], namespace: str) -> list[dict[str, Any]]:
    """What `helm template` makes of the chart, in the order in which it is to be applied.

    Args:
        values: all of them (`slicepilot.cluster.install.values`).
        namespace: that the agents run in.

    Raises:
        ConfigError: a namespace that cannot be one.
        TemplateError: a fault of the chart.
    """
    if not _NAMESPACE.fullmatch(namespace):
        raise ConfigError(
            f"namespace = {namespace!r}: accepted: at most 63 of a-z, 0-9 and -, none of them - at an end"
        )
    chart = read_yaml(CHART / "Chart.yaml")
    known = {
        "Values": values,
        "Release": {"Namespace": namespace},
        "Chart": {"AppVersion": str(chart["appVersion"])},
    }
    found: list[dict[str, Any]] = []
    for path in sorted((CHART / "templates").glob("*.yaml")):
        text = rendered(path.read_text(encoding="utf-8"), known)
        found += [one for one in yaml.safe_load_all(text) if one is not None]
    return in_order(found)


def in_order(documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """As they are to be applied."""
    return sorted(documents, key=_rank)


def _rank(document: Mapping[str, Any]) -> int:
    kind = document["kind"]
    if kind in _LAST:
        return len(_FIRST) + 1
    return _FIRST.index(kind) if kind in _FIRST else len(_FIRST)
