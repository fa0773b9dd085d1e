"""What of a cluster, and of a node of it, `slicepilot doctor --kubernetes` looks at."""
