"""Commands: ``slicepilot node ...``."""
