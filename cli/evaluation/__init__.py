"""Commands that play agents and say how they compare."""
