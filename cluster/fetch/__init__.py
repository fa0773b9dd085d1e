"""Policy bundles and guard rules that SliceSets refer to."""
