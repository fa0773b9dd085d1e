"""Everything that speaks to the kernel and the service manager, but knows nothing of slices."""
