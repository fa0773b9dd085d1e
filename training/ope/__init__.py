"""Off-policy evaluation: estimates of a policy's reward from episodes of other policies."""
