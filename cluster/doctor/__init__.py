"""The checks of ``slicepilot doctor --kubernetes``."""
