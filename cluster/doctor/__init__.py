"""The checks of a cluster and of this node for `slicepilot doctor --kubernetes`."""
