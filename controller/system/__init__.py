"""Access to the kernel and the service manager; it knows nothing of slices."""
