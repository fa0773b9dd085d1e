"""The commands of an operator: run, watch, control and explain a controller."""
