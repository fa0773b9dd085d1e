"""The commands that run agents and compare them."""
