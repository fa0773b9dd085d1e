"""Telemetry from a Prometheus server, for nodes where the probe may not run."""
