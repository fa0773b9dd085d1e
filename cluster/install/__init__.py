"""Installation: the chart's objects without helm, put there, looked at, taken away."""
