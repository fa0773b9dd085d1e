"""What the API server has: SliceSets and pods as values, checked; conditions."""
