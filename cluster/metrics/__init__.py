"""The metrics of an agent and its loops for Prometheus, on one port of the node's agent."""
