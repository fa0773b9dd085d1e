"""Sweeps: parallel training runs that differ in seeds, algorithms or weights, on Ray Tune."""
