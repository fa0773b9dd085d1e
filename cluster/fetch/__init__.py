"""What SliceSets refer to, fetched and kept: policy bundles, and rules of the guard."""
