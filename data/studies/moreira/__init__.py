"""Moreira et al.: resources of a UPF under attack, and latencies of GTP-U decapsulation."""
