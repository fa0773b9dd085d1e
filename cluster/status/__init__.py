"""Status of SliceSets in the API."""
