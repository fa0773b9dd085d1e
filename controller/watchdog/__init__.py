"""Restoring the original settings however the controller ends, and respecting changes by other programs."""
