"""What a controller exports to Prometheus."""
