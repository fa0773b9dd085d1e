"""Agents decide on the knobs of slices: fixed settings, rules, planners and learned policies."""
