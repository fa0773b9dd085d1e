"""SliceSets and pods as validated values."""
