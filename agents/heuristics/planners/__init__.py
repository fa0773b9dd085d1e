"""Agents that plan in the simulator."""
