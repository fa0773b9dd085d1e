"""Running, scoring and comparing agents."""
