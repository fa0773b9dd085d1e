"""Playing agents, scoring what happened, and reporting how they compare."""
