"""A node's UPFs as a backend of the control loop."""
