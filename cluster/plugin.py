"""What a cluster offers to the rest of `slicepilot`; see `slicepilot.configs.backends`."""

from __future__ import annotations

from slicepilot.configs.backends import BackendPlugin, Command

BACKEND = BackendPlugin(
    name="cluster",
    cluster_checks="slicepilot.cluster.doctor.checks:checks",
    groups={"k8s": "Run and inspect agents on the nodes of a Kubernetes cluster."},
    commands={
        "k8s agent": Command("slicepilot.cluster.cli.agent:agent"),
        "k8s status": Command("slicepilot.cluster.cli.status:status"),
    },
)
