"""What a simulator of a node has to know of it, told from the traffic that there is."""
