"""Metrics of the agent and its loops for Prometheus."""
