"""Validated objects of the API: SliceSets, pods, labels, quantities, names."""
