"""A controller from start to end: configuration, policy, modes, orders."""
