"""``slicepilot train``: policies from the simulator, from logs, or fine-tuned."""
