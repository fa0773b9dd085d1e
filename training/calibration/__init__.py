"""Fitting the simulator to a published study or a running node."""
