"""A trained policy as an agent: the policy bundle, its signature, and playing it."""
