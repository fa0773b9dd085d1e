"""The commands ``slicepilot dataset ...``."""
