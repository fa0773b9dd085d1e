"""The slices of a node, derived from SliceSets and pods, and the configurations of its loops."""
