"""Fitting the simulator: to the published study, and to a running node."""
