"""What a cluster offers to the rest of `slicepilot`; see `slicepilot.configs.backends`."""

from __future__ import annotations

from slicepilot.configs.backends import BackendPlugin, Command

BACKEND = BackendPlugin(
    name="cluster",
    cluster_checks="slicepilot.cluster.doctor.checks:checks",
    groups={"k8s": "Slices of a Kubernetes cluster: agents of its nodes, and installing them."},
    commands={
        "k8s agent": Command(
            "slicepilot.cluster.cli.agent:agent",
            "Run a loop on this node for the SliceSets that have pods here, and tell the API server about it.",
        ),
        "k8s install": Command(
            "slicepilot.cluster.cli.install:install",
            "Install the agents, or change how they are installed: what the Helm chart does, without Helm.",
        ),
        "k8s render": Command(
            "slicepilot.cluster.cli.render:render",
            "Print what the Helm chart makes of some values, without Helm, for `kubectl apply --server-side -f -`.",
        ),
        "k8s status": Command(
            "slicepilot.cluster.cli.status:status",
            "Show agents by node, SliceSets, and what is not as it is declared.",
        ),
        "k8s uninstall": Command(
            "slicepilot.cluster.cli.uninstall:uninstall",
            "Delete all SliceSets, then the agents and their roles; knobs are as they were found when it returns.",
        ),
    },
)
