"""One controller from start to end: configuration, policy, modes, leases on knobs, orders."""
