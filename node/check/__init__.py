"""Checks of a node: whether its packets are measured, and whether its knobs act."""
