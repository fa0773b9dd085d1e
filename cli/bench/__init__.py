"""Benchmarks that need no running user plane."""
