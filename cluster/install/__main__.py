"""``python -m slicepilot.cluster.install`` in a clone: write what is made of the chart and of its values' types."""

from __future__ import annotations

import json

import yaml

from .manifests import definitions, in_order, manifests
from .values import CHART, schema, values

NAMESPACE = "slicepilot-system"


def main() -> None:
    """The chart's schema, and the objects that `deploy/kustomize` has."""
    chart = CHART.resolve()
    (chart / "values.schema.json").write_text(json.dumps(schema(), indent=2) + "\n")
    documents = in_order([*definitions(), *manifests(values({"namespace": {"create": True}}), NAMESPACE)])
    text = yaml.safe_dump_all(documents, sort_keys=False, width=120)
    head = "# Made of the chart by `python -m slicepilot.cluster.install`: change deploy/helm/slicepilot instead.\n"
    (chart.parents[1] / "kustomize" / "slicepilot.yaml").write_text(head + text)


if __name__ == "__main__":
    main()
