"""What a cluster offers to the rest of `slicepilot`; see `slicepilot.configs.backends`."""

from __future__ import annotations

from ..configs.backends import BackendPlugin, Command

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
            "Install the agents on a cluster, or change how they are installed, without Helm.",
        ),
        "k8s render": Command(
            "slicepilot.cluster.cli.render:render",
            "Print the objects of an installation as YAML: what the Helm chart makes of some values.",
        ),
        "k8s status": Command(
            "slicepilot.cluster.cli.status:status",
            "Show agents by node, SliceSets, and what is not as it is declared.",
        ),
        "k8s uninstall": Command(
            "slicepilot.cluster.cli.uninstall:uninstall",
            "Delete SliceSets, agents and roles; knobs are as they were found when it returns.",
        ),
    },
)
