"""What a cluster offers to the rest of `slicepilot`; see `slicepilot.configs.backends`."""

from __future__ import annotations

from slicepilot.configs.backends import BackendPlugin, Command

BACKEND = BackendPlugin(
    name="cluster",
    cluster_checks="slicepilot.cluster.doctor.checks:checks",
    groups={"k8s": "Run and inspect agents on the nodes of a Kubernetes cluster."},
    commands={
        "k8s agent": Command(
            "slicepilot.cluster.cli.agent:agent",
            "Run the loops of this node for the SliceSets that have pods here, and report to the API server.",
        ),
        "k8s status": Command(
            "slicepilot.cluster.cli.status:status",
            "Show agents by node, SliceSets, and differences from what they declare.",
        ),
    },
)
