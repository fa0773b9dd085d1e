"""The slices of a node, from SliceSets and pods, and the configuration of their loops."""
