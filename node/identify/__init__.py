"""Estimating hardware parameters of a node from its traffic."""
