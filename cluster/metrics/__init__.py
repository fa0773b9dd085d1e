"""What an agent and its loops give Prometheus to scrape, on one port of the node's agent."""
