"""Runs, policies and candidates of evaluations side by side, from their folders, without a server."""
