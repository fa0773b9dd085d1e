"""Sweeps: many training runs that differ in seeds, algorithms or weights, side by side on Ray Tune."""
