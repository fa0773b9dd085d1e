"""The manual's page of commands and their JSON: ``python -m slicepilot.cli.reference`` writes docs/cli.md."""
