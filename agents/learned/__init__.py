"""Learned policies as agents, and the bundles that contain them."""
