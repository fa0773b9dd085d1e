"""Telemetry out of a Prometheus server, where the probe may not run."""
