"""Fast execution of exported policies on one node."""
