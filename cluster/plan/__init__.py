"""Which slices a node has, by SliceSets and pods, and what its loops are started with."""
