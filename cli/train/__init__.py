"""The commands that train policies."""
