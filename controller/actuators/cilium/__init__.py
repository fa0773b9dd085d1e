"""Egress rates in the map of Cilium's bandwidth manager."""
