"""What a node's own UPFs offer to the rest of `slicepilot`; see `slicepilot.configs.backends`."""

from __future__ import annotations

from slicepilot.configs.backends import BackendPlugin, Command

_HERE = "slicepilot.node"

BACKEND = BackendPlugin(
    name="node",
    open_node=f"{_HERE}.live.backend:open_node",
    open_live=f"{_HERE}.live.stepped:open_live",
    points=f"{_HERE}.live.points:points_of_node",
    groups={"node": "UPFs that run on this machine already: find them, see what can be measured and moved."},
    commands={
        "node discover": Command(
            f"{_HERE}.cli.discover:discover",
            "List UPFs that run on this machine, whoever started them: processes, namespaces, interfaces, cgroups.",
        ),
        "node check": Command(
            f"{_HERE}.cli.check:check",
            "Say for each slice of a node if its packets are measured, and which knobs act on them, and why.",
        ),
        "dataset import-prometheus": Command(
            f"{_HERE}.cli.import_prometheus:import_prometheus",
            "Ask a Prometheus server for a range of time of a node, and keep it as episodes to learn from offline.",
        ),
        "node identify": Command(
            f"{_HERE}.cli.identify:identify",
            "Tell a simulator's hardware parameters from the traffic that a node has, and say which had to be assumed.",
            makes=True,
        ),
    },
)
