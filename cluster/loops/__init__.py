"""Loops as child processes: starting and ending them, setting their modes, reading their status."""
