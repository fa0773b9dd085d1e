"""Which slices a node has, by SliceSets and pods; and what a loop is told of them."""
