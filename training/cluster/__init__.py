"""Ray: processes on this machine, or a cluster's."""
