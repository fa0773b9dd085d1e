"""What a configuration says of a node."""
