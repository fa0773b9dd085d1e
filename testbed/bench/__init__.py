"""Benchmarks on real packets, fault injection and soak tests."""
