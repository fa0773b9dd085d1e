"""Shapes of the JSON documents that commands print."""
