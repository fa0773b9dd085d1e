"""Which process is meant, by whatever name its owner knows it."""
