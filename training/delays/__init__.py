"""Delays of any recorded or imported kind: read by group, put through the statistics, written as a report."""
