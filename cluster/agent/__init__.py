"""The agent of a node: all that together."""
