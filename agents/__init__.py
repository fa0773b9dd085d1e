"""Who decides: fixed settings, heuristics, learned policies and the policy bundle."""
