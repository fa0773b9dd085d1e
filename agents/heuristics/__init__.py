"""Agents without learned weights, and all agents by name."""
