"""Checks of a node: whether its packets are measured, and whether knobs act."""
