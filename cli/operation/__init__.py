"""Commands of an operator: run a controller, watch it, order it about, explain what it did."""
