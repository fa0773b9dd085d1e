"""The commands ``slicepilot node ...``."""
