"""The commands ``slicepilot k8s ...``."""
