"""Readers of Moreira et al.: resources of a UPF under attack, latencies of GTP-U decapsulation."""
