"""Restores the original settings however the controller ends, and respects the settings of other programs."""
