"""Commands: ``slicepilot k8s ...``."""
