"""A fluid simulator of several UPFs on a node, vectorised over slices and lanes (nodes in parallel)."""
