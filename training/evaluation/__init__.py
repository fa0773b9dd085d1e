"""Running agents, scoring and comparing them."""
