"""Cilium's bandwidth manager: the rates of its map of endpoints."""
