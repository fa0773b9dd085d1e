"""Tidy tables: one row per measurement, units in column names."""
