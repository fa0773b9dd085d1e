"""What a cluster offers to the rest of `slicepilot`; see `slicepilot.configs.backends`."""

from __future__ import annotations

from ..configs.backends import BackendPlugin, Command

BACKEND = BackendPlugin(
    name="cluster",
    cluster_checks="slicepilot.cluster.doctor.checks:checks",
    groups={"k8s": "Slices of a Kubernetes cluster: the agent of a node."},
    commands={
        "k8s agent": Command(
            "slicepilot.cluster.cli.agent:agent",
            "Run a loop on this node for the SliceSets that have pods here, and tell the API server about it.",
        ),
    },
)
