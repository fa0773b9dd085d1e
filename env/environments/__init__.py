"""The Gymnasium environments: for a single node, and vectorised over nodes."""
