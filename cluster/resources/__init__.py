"""Objects of the API as checked values: SliceSets, pods, labels, quantities, names."""
