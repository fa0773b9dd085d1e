"""Prints the rules of ``deploy/prometheus`` as a PrometheusRule of the Prometheus operator:

    python deploy/kubernetes-monitoring/rules.py | kubectl apply -f -

An alert's `explain` command runs in the agent's pod.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).parents[1] / "prometheus"
SOURCES = [RULES / name for name in ("alerts.yaml", "agents.yaml", "recording.yaml")]
IN_POD = "kubectl -n {{ $labels.namespace }} exec {{ $labels.pod }} -- "
PROGRAM = "slicepilot explain "
OF_LOOP = "--name {{ $labels.loop }} "
"""A pod has the loops of all SliceSets of its node."""


def document() -> dict[str, Any]:
    """The object, for the Prometheus operator (monitoring.coreos.com/v1)."""
    groups = [group for source in SOURCES for group in yaml.safe_load(source.read_text())["groups"]]
    for group in groups:
        for rule in group["rules"]:
            if "explain" in (annotations := rule.get("annotations", {})):
                annotations["explain"] = IN_POD + annotations["explain"].replace(PROGRAM, PROGRAM + OF_LOOP)
    metadata = {"name": "slicepilot", "labels": {"app.kubernetes.io/name": "slicepilot"}}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata,
        "spec": {"groups": groups},
    }


if __name__ == "__main__":
    print(yaml.safe_dump(document(), sort_keys=False, width=118, allow_unicode=True), end="")
