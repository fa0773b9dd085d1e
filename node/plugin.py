"""What a node's own UPFs offer to the rest of `slicepilot`; see `slicepilot.configs.backends`."""

from __future__ import annotations

from slicepilot.configs.backends import BackendPlugin, Command

_HERE = "slicepilot.node"

BACKEND = BackendPlugin(
    name="node",
    open_node=f"{_HERE}.live.backend:open_node",
    open_live=f"{_HERE}.live.stepped:open_live",
    points=f"{_HERE}.live.points:points_of_node",
    groups={"node": "Find and check UPFs that already run on this machine."},
    commands={
        "node discover": Command(f"{_HERE}.cli.discover:discover"),
        "node check": Command(f"{_HERE}.cli.check:check"),
        "dataset import-prometheus": Command(f"{_HERE}.cli.import_prometheus:import_prometheus"),
        "node identify": Command(f"{_HERE}.cli.identify:identify", makes=True),
    },
)
