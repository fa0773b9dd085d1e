"""Policy bundles and guard rules that SliceSets refer to: fetched, checked, and stored on the node."""
