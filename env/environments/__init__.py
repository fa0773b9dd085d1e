"""The Gymnasium environments: one node, and many side by side."""
