"""Execution of exported policies, and the check of their operators."""
