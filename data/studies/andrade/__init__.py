"""Readers of Andrade and Wickboldt (2025): resources and latencies of 26 experiments."""
