"""Training and evaluating agents."""
