"""A fluid simulator of several UPFs on one node, vectorised over slices and lanes."""
